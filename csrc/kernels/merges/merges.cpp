#include "kernels/merges/merges.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <stdexcept>

namespace kokuban {
namespace {

constexpr uint64_t kSeed = 0xcbf29ce484222325;

// FNV-1a, which grows by one byte at a time: the hash of a prefix is on the way to the next one's.
uint64_t grow(uint64_t hash, char byte) { return (hash ^ static_cast<uint8_t>(byte)) * 0x100000001b3; }

uint64_t hash_of(std::string_view text) {
    uint64_t hash = kSeed;
    for (const char byte : text) hash = grow(hash, byte);
    return hash;
}

bool begins_character(char byte) { return (static_cast<uint8_t>(byte) & 0xc0) != 0x80; }

// From texts to piece numbers, at most half full.
class Index {
   public:
    explicit Index(const std::vector<std::string_view>& pieces)
        : pieces_(pieces), slots_(std::bit_ceil(2 * pieces.size() + 1), -1) {
        for (size_t i = 0; i < pieces.size(); ++i) {
            int32_t& slot = slots_[place(pieces[i], hash_of(pieces[i]))];
            if (slot >= 0) throw std::invalid_argument("two pieces are equal");
            slot = static_cast<int32_t>(i);
        }
    }

    // -1: there is no such piece.
    int32_t find(std::string_view text, uint64_t hash) const { return slots_[place(text, hash)]; }

   private:
    // Where it is, or would be.
    size_t place(std::string_view text, uint64_t hash) const {
        const size_t mask = slots_.size() - 1;
        size_t at = static_cast<size_t>(hash ^ (hash >> 32)) & mask;
        while (slots_[at] >= 0 && pieces_[static_cast<size_t>(slots_[at])] != text) at = (at + 1) & mask;
        return at;
    }

    const std::vector<std::string_view>& pieces_;
    std::vector<int32_t> slots_;
};

}  // namespace

std::vector<std::pair<int32_t, int32_t>> merges_by_score(const std::vector<std::string_view>& pieces,
                                                         const uint8_t* usable, const double* scores) {
    if (!std::all_of(scores, scores + pieces.size(), [](double score) { return std::isfinite(score); })) {
        throw std::invalid_argument("a score is not finite");
    }
    const Index index(pieces);
    std::vector<int32_t> order(pieces.size());
    std::iota(order.begin(), order.end(), 0);
    std::erase_if(order, [&](int32_t i) { return !usable[i]; });
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return scores[a] > scores[b]; });
    const auto usable_piece = [&](std::string_view text, uint64_t hash) {
        const int32_t found = index.find(text, hash);
        return found >= 0 && usable[found] ? found : -1;
    };
    std::vector<std::pair<int32_t, int32_t>> merges;
    for (const int32_t number : order) {
        const std::string_view piece = pieces[static_cast<size_t>(number)];
        const size_t first = merges.size();
        uint64_t hash = kSeed;
        for (size_t cut = 1; cut < piece.size(); ++cut) {
            hash = grow(hash, piece[cut - 1]);
            if (!begins_character(piece[cut])) continue;
            const int32_t left = usable_piece(piece.substr(0, cut), hash);
            if (left < 0) continue;
            const std::string_view rest = piece.substr(cut);
            const int32_t right = usable_piece(rest, hash_of(rest));
            if (right >= 0) merges.emplace_back(left, right);
        }
        std::sort(merges.begin() + static_cast<std::ptrdiff_t>(first), merges.end());
    }
    return merges;
}

}  // namespace kokuban
