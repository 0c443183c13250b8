// The integer dot products of a sub-block in plain C++: their definition.
#pragma once

#include "kernels/linear/linear.h"
#include "simd/scalar.h"

namespace kokuban {
namespace {

constexpr int kMaxRows = 1;        // rows of x that share one pass over a group
constexpr int kMaxFloatRows = 1;   // rows of x that share one pass over unquantised W
constexpr int kFloatChains = 2;    // tiles by rows of such a pass when rows are few

constexpr int fused_rows(int) { return 0; }  // up to so many rows, codes of so many bits are unpacked in registers

// dot[r] = sum over the quads kFirst … kFirst + kQuads - 1 of (code - kBias) times x[r]'s q.
template <int kBits, int kBias, int kFirst, int kQuads, int kRows, class Group>
KOKUBAN_INLINE void dot_quads(const Group& w, const QuantizedGroup* x, I32 (&dot)[kRows]) {
    for (int r = 0; r < kRows; ++r) {
        dot[r] = i_zero();
        for (int quad = kFirst; quad < kFirst + kQuads; ++quad) {
            for (int i = 0; i < 4 * kLanes; ++i) dot[r].v[i / 4] += (w.code(quad, i) - kBias) * x[r].q[4 * quad + i % 4];
        }
    }
}

}  // namespace
}  // namespace kokuban
