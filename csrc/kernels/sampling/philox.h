// Philox4x32-10, a counter-based random number generator: the numbers are a function of key and
// counter alone, so that batch, threads, preemption and replay change nothing.
//
// Source: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011,
// section 3.3.
#pragma once

#include <array>
#include <cstdint>

namespace kokuban {

inline std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter,
                                          std::array<uint32_t, 2> key) {
    for (int round = 0; round < 10; ++round) {
        const uint64_t first = uint64_t{0xD2511F53} * counter[0];
        const uint64_t second = uint64_t{0xCD9E8D57} * counter[2];
        counter = {static_cast<uint32_t>(second >> 32) ^ counter[1] ^ key[0],
                   static_cast<uint32_t>(second),
                   static_cast<uint32_t>(first >> 32) ^ counter[3] ^ key[1],
                   static_cast<uint32_t>(first)};
        key[0] += 0x9E3779B9;  // the golden ratio
        key[1] += 0xBB67AE85;  // sqrt(3) - 1
    }
    return counter;
}

// 53 random bits for one token. Key: the seed. Counter: position (low, high word), choice, 0; the
// last word is for other streams of the same request.
inline uint64_t random_bits53(uint64_t seed, uint32_t choice, uint64_t position) {
    const auto words = philox4x32(
        {static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), choice, 0},
        {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
    return ((uint64_t{words[1]} << 32) | words[0]) >> 11;
}

}  // namespace kokuban
