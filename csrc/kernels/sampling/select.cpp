#include "kernels/sampling/select.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace kokuban {
namespace {

// At most so many are sorted rather than parted again.
constexpr size_t kFew = 48;

uint64_t median(uint64_t a, uint64_t b, uint64_t c) {
    return std::max(std::min(a, b), std::min(std::max(a, b), c));
}

// Moves the keys up to the pivot's to the front. Returns how many, and adds up their masses.
size_t part(Candidate* candidates, size_t count, uint64_t pivot, uint64_t* mass) {
    size_t kept = 0;
    uint64_t sum = 0;
    for (size_t i = 0; i < count; ++i) {
        const Candidate candidate = candidates[i];
        const bool early = candidate.key <= pivot;
        candidates[i] = candidates[kept];  // both stores always: no branch to mispredict
        candidates[kept] = candidate;
        kept += early;
        sum += early ? candidate.mass : 0;
    }
    *mass = sum;
    return kept;
}

}  // namespace

uint64_t best_first_key(float logit, int32_t id) {
    const uint32_t bits = std::bit_cast<uint32_t>(logit + 0.0f);  // -0 becomes 0
    const uint32_t ascending = bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
    return uint64_t{~ascending} << 32 | static_cast<uint32_t>(id);
}

size_t select_mass(Candidate* candidates, size_t count, uint64_t need) {
    size_t low = 0, high = count;  // the last one wanted is in [low, high)
    uint64_t random = 0x9E3779B97F4A7C15;
    const auto any_key = [&] {
        random = random * 6364136223846793005 + 1442695040888963407;  // Knuth's MMIX
        return candidates[low + (random >> 33) % (high - low)].key;
    };
    while (high - low > kFew) {
        const uint64_t first = any_key(), second = any_key(), third = any_key();
        uint64_t mass = 0;
        const size_t kept = part(candidates + low, high - low, median(first, second, third), &mass);
        if (mass >= need) {
            if (low + kept == high) break;  // the pivot was the largest: sort what is left
            high = low + kept;
        } else {
            low += kept;
            need -= mass;
        }
    }
    std::sort(candidates + low, candidates + high,
              [](const Candidate& a, const Candidate& b) { return a.key < b.key; });
    while (low < high && candidates[low].mass < need) need -= candidates[low++].mass;
    return std::min(low + 1, count);
}

}  // namespace kokuban
