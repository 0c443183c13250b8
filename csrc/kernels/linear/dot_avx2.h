// The integer dot products of a sub-block by vpmaddubsw: unsigned codes times signed activations,
// two at a time, added to 16 bits with saturation; then vpaddw adds further ones, modulo 2^16, and
// vpmaddwd widens the sum. How many quads a sum of 16 bits can take:
//
//     4 bits and fewer  8 quads: at most 8 * 2 * 15 * 127 = 30480
//     5 bits            4 quads: 4 * 2 * 31 * 127 = 31496. With a bias 8: the sum itself does not fit, but
//                       that of code - 16 does (8 * 2 * 16 * 127 = 32512); it is exact modulo 2^16,
//                       whatever happened on the way
//     6 bits            4 quads, likewise: 4 * 2 * 32 * 127 = 32512
//     8 bits            1 quad, as magnitude of code - 128 times signed x: 2 * 128 * 127 = 32512
//
// One product of two 6-bit codes (2 * 63 * 127 = 16002) does not saturate; one of 8-bit codes would.
#pragma once

#include "kernels/linear/linear.h"
#include "simd/avx2.h"

namespace kokuban {
namespace {

constexpr int kMaxRows = 4;
constexpr int kMaxFloatRows = 4;
constexpr int kFloatChains = 4;
constexpr int fused_rows(int bits) { return bits <= 4 || bits == 8 ? 8 : 4; }

constexpr int quads_in_16_bits(int bits, int bias) { return bits <= 4 || (bits == 5 && bias) ? 8 : 4; }

constexpr int log2_of(int power) { return power <= 1 ? 0 : 1 + log2_of(power / 2); }

KOKUBAN_INLINE __m256i broadcast_quad(const int8_t* q) {
    int32_t four;
    memcpy(&four, q, 4);
    return _mm256_set1_epi32(four);
}

// Sums stay in the order that they are written in. Without this GCC takes a group's products all
// before its sums, and spills them: half the speed.
KOKUBAN_INLINE void keep_order(I32& x) { asm("" : "+x"(x.a), "+x"(x.b)); }

KOKUBAN_INLINE __m256i broadcast_pair(const int16_t (&sums)[2]) {
    int32_t two;
    memcpy(&two, sums, 4);
    return _mm256_set1_epi32(two);
}

// words[r] = the 16-bit sums of kQuads quads of (code - kBias) times x[r]'s q, modulo 2^16.
template <int kBias, int kFirst, int kQuads, int kRows, class Codes>
KOKUBAN_INLINE void dot_words(const Codes& w, const QuantizedGroup* x, I32 (&words)[kRows]) {
    if constexpr (kQuads > 0) {
        dot_words<0, kFirst, kQuads - 1>(w, x, words);
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
    if constexpr (kBias != 0) {
        for (int r = 0; r < kRows; ++r) {
            __m256i sums = broadcast_pair(x[r].pair_sums[kFirst / 4]);
            if constexpr (kQuads == 8) sums = _mm256_add_epi16(sums, broadcast_pair(x[r].pair_sums[1]));
            const __m256i bias = _mm256_slli_epi16(sums, log2_of(kBias));
            words[r] = {_mm256_sub_epi16(words[r].a, bias), _mm256_sub_epi16(words[r].b, bias)};
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
template <int kBits, int kBias, int kFirst, int kQuads, int kRows, class Group>
KOKUBAN_INLINE void dot_quads(const Group& w, const QuantizedGroup* x, I32 (&dot)[kRows]) {
    if constexpr (kQuads == 0) {
        for (int r = 0; r < kRows; ++r) dot[r] = i_zero();
    } else if constexpr (kBits == 8) {
        static_assert(kBias == 128);
        dot_quads<kBits, kBias, kFirst, kQuads - 1>(w, x, dot);
        add_centred_quad<kFirst + kQuads - 1>(w, x, dot);
    } else if constexpr (kQuads > quads_in_16_bits(kBits, kBias)) {
        constexpr int kHalf = kQuads / 2;
        I32 words[kRows];
        dot_quads<kBits, kBias, kFirst, kHalf>(w, x, dot);
        dot_words<kBias, kFirst + kHalf, kHalf>(w, x, words);
        for (int r = 0; r < kRows; ++r) {
            dot[r] = i_add(dot[r], widen_words(words[r]));
            keep_order(dot[r]);
        }
    } else {
        constexpr bool kFits = kBits <= 4 && kQuads == 8;  // before the bias comes off
        I32 words[kRows];
        dot_words<kFits ? 0 : kBias, kFirst, kQuads>(w, x, words);
        for (int r = 0; r < kRows; ++r) {
            dot[r] = widen_words(words[r]);
            if constexpr (kFits && kBias) dot[r] = i_sub(dot[r], i_shl<log2_of(kBias)>(i_set1(x[r].sum)));
        }
    }
}

}  // namespace
}  // namespace kokuban
