// Sixteen lanes as two AVX2 registers (with FMA and F16C). scalar.h says what each name means.
#pragma once

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define KOKUBAN_INLINE [[maybe_unused]] static inline __attribute__((always_inline))

namespace {

constexpr int kLanes = 16;

struct F32 {
    __m256 a, b;
};
struct I32 {
    __m256i a, b;
};

// All ones in the lanes below n, counted from `first`.
KOKUBAN_INLINE __m256i lanes_below(int n, int first) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n - first), lane);
}

KOKUBAN_INLINE F32 f_set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
KOKUBAN_INLINE F32 f_zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
KOKUBAN_INLINE F32 f_load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
KOKUBAN_INLINE F32 f_load_n(const float* p, int n) {
    return {_mm256_maskload_ps(p, lanes_below(n, 0)), _mm256_maskload_ps(p + 8, lanes_below(n, 8))};
}
KOKUBAN_INLINE void f_store(float* p, F32 x) { _mm256_storeu_ps(p, x.a); _mm256_storeu_ps(p + 8, x.b); }
// Masked stores only where they must be: on Zen 3 one costs 10 to 20 times a plain store, and more
// where the line is not in the first cache.
KOKUBAN_INLINE void f_store_n(float* p, F32 x, int n) {
    if (n >= 8) {
        _mm256_storeu_ps(p, x.a);
    } else {
        _mm256_maskstore_ps(p, lanes_below(n, 0), x.a);
    }
    if (n >= kLanes) {
        _mm256_storeu_ps(p + 8, x.b);
    } else if (n > 8) {
        _mm256_maskstore_ps(p + 8, lanes_below(n, 8), x.b);
    }
}
KOKUBAN_INLINE F32 f_add(F32 x, F32 y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
KOKUBAN_INLINE F32 f_sub(F32 x, F32 y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
KOKUBAN_INLINE F32 f_mul(F32 x, F32 y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
KOKUBAN_INLINE F32 f_div(F32 x, F32 y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
KOKUBAN_INLINE F32 f_sqrt(F32 x) { return {_mm256_sqrt_ps(x.a), _mm256_sqrt_ps(x.b)}; }
KOKUBAN_INLINE F32 f_fma(F32 x, F32 y, F32 z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
KOKUBAN_INLINE F32 f_fnma(F32 x, F32 y, F32 z) { return {_mm256_fnmadd_ps(x.a, y.a, z.a), _mm256_fnmadd_ps(x.b, y.b, z.b)}; }
KOKUBAN_INLINE F32 f_max(F32 x, F32 y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
KOKUBAN_INLINE F32 f_min(F32 x, F32 y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
KOKUBAN_INLINE F32 f_abs(F32 x) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
}
KOKUBAN_INLINE F32 f_first_n(F32 x, F32 y, int n) {
    return {_mm256_blendv_ps(y.a, x.a, _mm256_castsi256_ps(lanes_below(n, 0))),
            _mm256_blendv_ps(y.b, x.b, _mm256_castsi256_ps(lanes_below(n, 8)))};
}
KOKUBAN_INLINE F32 f_keep_ge(F32 x, F32 limit, F32 y) {
    return {_mm256_and_ps(_mm256_cmp_ps(x.a, limit.a, _CMP_GE_OQ), y.a),
            _mm256_and_ps(_mm256_cmp_ps(x.b, limit.b, _CMP_GE_OQ), y.b)};
}
KOKUBAN_INLINE uint32_t f_mask_ge(F32 x, F32 limit) {
    const int first = _mm256_movemask_ps(_mm256_cmp_ps(x.a, limit.a, _CMP_GE_OQ));
    const int second = _mm256_movemask_ps(_mm256_cmp_ps(x.b, limit.b, _CMP_GE_OQ));
    return static_cast<uint32_t>(first) | static_cast<uint32_t>(second) << 8;
}

KOKUBAN_INLINE I32 i_set1(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
KOKUBAN_INLINE I32 i_zero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
KOKUBAN_INLINE I32 i_load(const int32_t* p) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8))};
}
KOKUBAN_INLINE void i_store(int32_t* p, I32 x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x.a);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), x.b);
}
KOKUBAN_INLINE I32 i_add(I32 x, I32 y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
KOKUBAN_INLINE I32 i_sub(I32 x, I32 y) { return {_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)}; }
KOKUBAN_INLINE I32 i_mul(I32 x, I32 y) { return {_mm256_mullo_epi32(x.a, y.a), _mm256_mullo_epi32(x.b, y.b)}; }
KOKUBAN_INLINE F32 f_from_i(I32 x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
KOKUBAN_INLINE I32 i_from_f(F32 x) { return {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }
KOKUBAN_INLINE F32 f_from_bits(I32 x) { return {_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)}; }
KOKUBAN_INLINE I32 i_from_bits(F32 x) { return {_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)}; }
template <int kBits>
KOKUBAN_INLINE I32 i_shl(I32 x) { return {_mm256_slli_epi32(x.a, kBits), _mm256_slli_epi32(x.b, kBits)}; }
template <int kBits>
KOKUBAN_INLINE I32 i_shr(I32 x) { return {_mm256_srli_epi32(x.a, kBits), _mm256_srli_epi32(x.b, kBits)}; }
KOKUBAN_INLINE I32 i_and(I32 x, I32 y) { return {_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)}; }
KOKUBAN_INLINE I32 i_or(I32 x, I32 y) { return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)}; }
KOKUBAN_INLINE I32 i_where_nan(F32 x, I32 a, I32 b) {
    const __m256 low = _mm256_cmp_ps(x.a, x.a, _CMP_UNORD_Q), high = _mm256_cmp_ps(x.b, x.b, _CMP_UNORD_Q);
    return {_mm256_blendv_epi8(b.a, a.a, _mm256_castps_si256(low)),
            _mm256_blendv_epi8(b.b, a.b, _mm256_castps_si256(high))};
}
KOKUBAN_INLINE I32 i_load_u8(const uint8_t* p) {
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {_mm256_cvtepu8_epi32(x), _mm256_cvtepu8_epi32(_mm_srli_si128(x, 8))};
}
KOKUBAN_INLINE I32 i_load_i8(const int8_t* p) {
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {_mm256_cvtepi8_epi32(x), _mm256_cvtepi8_epi32(_mm_srli_si128(x, 8))};
}
KOKUBAN_INLINE I32 i_load_u16(const uint16_t* p) {
    return {_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
            _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
KOKUBAN_INLINE void i_store_u16(uint16_t* p, I32 x) {
    const __m256i mask = _mm256_set1_epi32(0xffff);
    const __m256i packed = _mm256_packus_epi32(_mm256_and_si256(x.a, mask), _mm256_and_si256(x.b, mask));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xd8));
}
KOKUBAN_INLINE void i_store_i8(int8_t* p, I32 x) {
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(x.a, x.b), 0xd8);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                     _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}

KOKUBAN_INLINE I32 i_pairs_from_i8(const int8_t* p) {
    return {_mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
            _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16)))};
}
KOKUBAN_INLINE I32 i_even_bytes(I32 x) {
    return {_mm256_srai_epi16(_mm256_slli_epi16(x.a, 8), 8), _mm256_srai_epi16(_mm256_slli_epi16(x.b, 8), 8)};
}
KOKUBAN_INLINE I32 i_odd_bytes(I32 x) { return {_mm256_srai_epi16(x.a, 8), _mm256_srai_epi16(x.b, 8)}; }
KOKUBAN_INLINE I32 i_dot_pairs(I32 x, I32 y, I32 z) {
    return {_mm256_add_epi32(z.a, _mm256_madd_epi16(x.a, y.a)), _mm256_add_epi32(z.b, _mm256_madd_epi16(x.b, y.b))};
}

KOKUBAN_INLINE float half_to_float(uint16_t h) { return _cvtsh_ss(h); }
KOKUBAN_INLINE uint16_t float_to_half(float f) { return _cvtss_sh(f, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
KOKUBAN_INLINE F32 f_load_f16(const uint16_t* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
            _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
KOKUBAN_INLINE void f_store_f16(uint16_t* p, F32 x) {
    constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x.a, kNearest));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm256_cvtps_ph(x.b, kNearest));
}

KOKUBAN_INLINE F32 f_load_e4m3(const uint8_t* p) {
    const __m256i codes = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const __m256i halves = _mm256_and_si256(_mm256_slli_epi16(codes, 7), _mm256_set1_epi16(static_cast<short>(0xbfff)));
    return {_mm256_cvtph_ps(_mm256_castsi256_si128(halves)), _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1))};
}

// The even (0x88) or odd (0xdd) ones of sixteen floats.
template <int kWhich>
KOKUBAN_INLINE __m256 every_other(__m256 low, __m256 high) {
    const __m256d mixed = _mm256_castps_pd(_mm256_shuffle_ps(low, high, kWhich));
    return _mm256_castpd_ps(_mm256_permute4x64_pd(mixed, 0xd8));
}
KOKUBAN_INLINE void f_load_pairs(const float* p, F32* first, F32* second) {
    const F32 low = f_load(p), high = f_load(p + 16);
    *first = {every_other<0x88>(low.a, low.b), every_other<0x88>(high.a, high.b)};
    *second = {every_other<0xdd>(low.a, low.b), every_other<0xdd>(high.a, high.b)};
}
KOKUBAN_INLINE void store_eight_pairs(float* p, __m256 first, __m256 second) {
    const __m256 low = _mm256_unpacklo_ps(first, second), high = _mm256_unpackhi_ps(first, second);
    _mm256_storeu_ps(p, _mm256_permute2f128_ps(low, high, 0x20));
    _mm256_storeu_ps(p + 8, _mm256_permute2f128_ps(low, high, 0x31));
}
KOKUBAN_INLINE void f_store_pairs(float* p, F32 first, F32 second) {
    store_eight_pairs(p, first.a, second.a);
    store_eight_pairs(p + 16, first.b, second.b);
}

KOKUBAN_INLINE float f_reduce_add(F32 x) {
    const __m256 eight = _mm256_add_ps(x.a, x.b);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
KOKUBAN_INLINE float f_reduce_max(F32 x) {
    const __m256 eight = _mm256_max_ps(x.a, x.b);
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}

}  // namespace

#include "simd/shared.h"
