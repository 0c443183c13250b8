// The integer dot products of a sub-block in plain C++: their definition.
#pragma once

#include "kernels/linear/linear.h"
#include "simd/scalar.h"

namespace kokuban {
namespace {

constexpr int kMaxRows = 1;        // rows of x that share one pass over a group
constexpr int kFusedRows = 0;      // up to so many rows, codes are unpacked in registers
constexpr int kMaxFloatRows = 1;   // rows of x that share one pass over unquantised W
constexpr int kFloatChains = 2;    // tiles by rows of such a pass when rows are few
constexpr bool kCentresBytes = false;  // whether dot_quads takes the bias of 8-bit codes off by itself

// dot[r] = sum over the quads kFirst … kFirst + kQuads - 1 of lane bytes (unsigned) times x[r]'s.
template <int kBits, int kFirst, int kQuads, int kRows, class Group>
KOKUBAN_INLINE void dot_quads(const Group& w, const QuantizedGroup* x, I32 (&dot)[kRows]) {
    for (int r = 0; r < kRows; ++r) {
        dot[r] = i_zero();
        for (int quad = kFirst; quad < kFirst + kQuads; ++quad) {
            for (int i = 0; i < 4 * kLanes; ++i) dot[r].v[i / 4] += w.code(quad, i) * x[r].q[4 * quad + i % 4];
        }
    }
}

}  // namespace
}  // namespace kokuban
