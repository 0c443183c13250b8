// The integer dot products of a sub-block in plain C++: their definition.
#pragma once

#include "kernels/linear/linear.h"
#include "simd/scalar.h"

namespace kokuban {
namespace {

constexpr int kMaxRows = 4;        // rows of x that share one pass over a group
constexpr int kMaxFloatRows = 4;   // the same for unquantised W
constexpr int kFloatChains = 4;    // tiles by rows that such a pass keeps in hand
constexpr bool kCentresBytes = false;  // whether `dot` takes the bias of 8-bit codes off by itself

// dot[r] = sum over the quads kFirst … kFirst + kQuads - 1 of lane bytes (unsigned) times x[r]'s.
template <int kBits, int kFirst, int kQuads, int kRows, class Group>
KOKUBAN_INLINE void dot_quads(const Group& w, const QuantizedGroup* x, I32 (&dot)[kRows]) {
    if constexpr (kQuads > 0) {
        dot_quads<kBits, kFirst, kQuads - 1>(w, x, dot);
        constexpr int kQuad = kFirst + kQuads - 1;
        const I32 codes = w.template quad<kQuad>();
        for (int r = 0; r < kRows; ++r) {
            for (int lane = 0; lane < kLanes; ++lane) {
                for (int i = 0; i < 4; ++i) {
                    dot[r].v[lane] += ((codes.v[lane] >> (8 * i)) & 255) * x[r].q[4 * kQuad + i];
                }
            }
        }
    } else {
        for (int r = 0; r < kRows; ++r) dot[r] = i_zero();
    }
}

}  // namespace
}  // namespace kokuban
