// The integer dot products of a sub-block by vpmaddubsw: unsigned codes times signed activations,
// two at a time, added to 16 bits with saturation. Sums stay in 16 bits as long as the largest code
// and the largest activation (127) cannot fill them, then vpmaddwd widens them:
//
//     codes up to 15 and below   8 quads   8 * 2 *  15 * 127 = 30480
//     codes up to 31             4 quads   4 * 2 *  31 * 127 = 31496
//     codes up to 63             2 quads   2 * 2 *  63 * 127 = 32004
//     8 bits, as -128 … 127      1 quad    1 * 2 * 128 * 127 = 32512, magnitude times signed x
#pragma once

#include "kernels/linear/linear.h"
#include "simd/avx2.h"

namespace kokuban {
namespace {

constexpr int kMaxRows = 4;
constexpr int kFusedRows = 8;
constexpr int kMaxFloatRows = 4;
constexpr int kFloatChains = 4;
constexpr bool kCentresBytes = true;

constexpr int quads_in_16_bits(int bits) { return bits <= 4 ? 8 : bits == 5 ? 4 : bits == 6 ? 2 : 1; }

KOKUBAN_INLINE __m256i broadcast_quad(const int8_t* q) {
    int32_t four;
    memcpy(&four, q, 4);
    return _mm256_set1_epi32(four);
}

// Sums stay in the order that they are written in. Without this GCC takes a group's products all
// before its sums, and spills them: half the speed.
KOKUBAN_INLINE void keep_order(I32& x) { asm("" : "+x"(x.a), "+x"(x.b)); }

// words[r] = the 16-bit sums of kQuads quads.
template <int kFirst, int kQuads, int kRows, class Group>
KOKUBAN_INLINE void dot_words(const Group& w, const QuantizedGroup* x, I32 (&words)[kRows]) {
    if constexpr (kQuads > 0) {
        dot_words<kFirst, kQuads - 1>(w, x, words);
        constexpr int kQuad = kFirst + kQuads - 1;
        const I32 codes = w.template quad<kQuad>();
        for (int r = 0; r < kRows; ++r) {
            const __m256i q = broadcast_quad(x[r].q + 4 * kQuad);
            const I32 products = {_mm256_maddubs_epi16(codes.a, q), _mm256_maddubs_epi16(codes.b, q)};
            if constexpr (kQuads == 1) {
                words[r] = products;
            } else {
                words[r] = {_mm256_add_epi16(words[r].a, products.a), _mm256_add_epi16(words[r].b, products.b)};
            }
            keep_order(words[r]);
        }
    }
}

KOKUBAN_INLINE I32 widen_words(I32 words) {
    const __m256i ones = _mm256_set1_epi16(1);
    return {_mm256_madd_epi16(words.a, ones), _mm256_madd_epi16(words.b, ones)};
}

// One quad of 8-bit codes, each less 128.
template <int kQuad, int kRows, class Group>
KOKUBAN_INLINE void add_centred_quad(const Group& w, const QuantizedGroup* x, I32 (&dot)[kRows]) {
    const I32 codes = w.template quad<kQuad>();
    const __m256i centre = _mm256_set1_epi8(-128);
    const I32 centred = {_mm256_xor_si256(codes.a, centre), _mm256_xor_si256(codes.b, centre)};
    const I32 magnitude = {_mm256_abs_epi8(centred.a), _mm256_abs_epi8(centred.b)};
    for (int r = 0; r < kRows; ++r) {
        const __m256i q = broadcast_quad(x[r].q + 4 * kQuad);
        const I32 words = {_mm256_maddubs_epi16(magnitude.a, _mm256_sign_epi8(q, centred.a)),
                           _mm256_maddubs_epi16(magnitude.b, _mm256_sign_epi8(q, centred.b))};
        dot[r] = i_add(dot[r], widen_words(words));
        keep_order(dot[r]);
    }
}

// dot_scalar.h says what it computes.
template <int kBits, int kFirst, int kQuads, int kRows, class Group>
KOKUBAN_INLINE void dot_quads(const Group& w, const QuantizedGroup* x, I32 (&dot)[kRows]) {
    if constexpr (kQuads == 0) {
        for (int r = 0; r < kRows; ++r) dot[r] = i_zero();
    } else if constexpr (kBits == 8) {
        dot_quads<kBits, kFirst, kQuads - 1>(w, x, dot);
        add_centred_quad<kFirst + kQuads - 1>(w, x, dot);
    } else if constexpr (kQuads <= quads_in_16_bits(kBits)) {
        I32 words[kRows];
        dot_words<kFirst, kQuads>(w, x, words);
        for (int r = 0; r < kRows; ++r) dot[r] = widen_words(words[r]);
    } else {
        constexpr int kStep = quads_in_16_bits(kBits);
        dot_quads<kBits, kFirst, kQuads - kStep>(w, x, dot);
        I32 words[kRows];
        dot_words<kFirst + kQuads - kStep, kStep>(w, x, words);
        for (int r = 0; r < kRows; ++r) {
            dot[r] = i_add(dot[r], widen_words(words[r]));
            keep_order(dot[r]);
        }
    }
}

}  // namespace
}  // namespace kokuban
