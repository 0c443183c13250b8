// Which of some candidates are the best ones, without sorting them all.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kokuban {

struct Candidate {
    uint64_t key;   // the smaller, the earlier; no two are equal
    uint64_t mass;  // its weight in fixed point, so that sums do not depend on their order
};

// Smaller for a larger logit; for equal logits (0 and -0 are equal), smaller for a lower id.
uint64_t best_first_key(float logit, int32_t id);

inline int32_t id_of_key(uint64_t key) { return static_cast<int32_t>(key & 0xffffffffu); }

// How many of the smallest keys it takes until their masses add up to `need` (1 or more); all if
// they never do. Reorders the candidates: those come first and, unless all were not enough, the one
// with the largest key is the last among them.
// Time: O(count) on average.
size_t select_mass(Candidate* candidates, size_t count, uint64_t need);

}  // namespace kokuban
