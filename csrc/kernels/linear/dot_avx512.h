// The integer dot products of a sub-block by vpdpbusd: unsigned codes times signed activations,
// four at a time, added to 32 bits without saturation.
#pragma once

#include "kernels/linear/linear.h"
#include "simd/avx512.h"

namespace kokuban {
namespace {

constexpr int kMaxRows = 8;
constexpr int kMaxFloatRows = 8;
constexpr int kFloatChains = 8;

constexpr int fused_rows(int) { return 8; }

KOKUBAN_INLINE __m512i broadcast_quad(const int8_t* q) {
    int32_t four;
    memcpy(&four, q, 4);
    return _mm512_set1_epi32(four);
}

// dot_scalar.h says what it computes. A bias is a sum to start from: a shift of what zeros would be.
template <int kBits, int kBias, int kFirst, int kQuads, int kRows, class Group>
KOKUBAN_INLINE void add_quads(const Group& w, const QuantizedGroup* x, I32 (&dot)[kRows]) {
    if constexpr (kQuads > 0) {
        add_quads<kBits, kBias, kFirst, kQuads - 1>(w, x, dot);
        constexpr int kQuad = kFirst + kQuads - 1;
        const I32 codes = w.template quad<kQuad>();
        for (int r = 0; r < kRows; ++r) {
            dot[r].v = _mm512_dpbusd_epi32(dot[r].v, codes.v, broadcast_quad(x[r].q + 4 * kQuad));
        }
    }
}

template <int kBits, int kBias, int kFirst, int kQuads, int kRows, class Group>
KOKUBAN_INLINE void dot_quads(const Group& w, const QuantizedGroup* x, I32 (&dot)[kRows]) {
    for (int r = 0; r < kRows; ++r) {
        const int32_t sum = kQuads == 8 ? x[r].sum : kFirst == 0 ? x[r].half_sum() : x[r].sum - x[r].half_sum();
        dot[r] = kBias == 0 ? i_zero() : i_set1(-kBias * sum);
    }
    add_quads<kBits, kBias, kFirst, kQuads>(w, x, dot);
}

}  // namespace
}  // namespace kokuban
