// Sixteen lanes as one AVX-512 register (F, BW, VL, DQ, VNNI). scalar.h says what each name means.
#pragma once

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define KOKUBAN_INLINE [[maybe_unused]] static inline __attribute__((always_inline))

namespace {

constexpr int kLanes = 16;

struct F32 {
    __m512 v;
};
struct I32 {
    __m512i v;
};

// A bit for each lane below n.
KOKUBAN_INLINE __mmask16 lanes_below(int n) {
    return static_cast<__mmask16>(n >= kLanes ? 0xffffu : n <= 0 ? 0u : (1u << n) - 1u);
}

KOKUBAN_INLINE F32 f_set1(float x) { return {_mm512_set1_ps(x)}; }
KOKUBAN_INLINE F32 f_zero() { return {_mm512_setzero_ps()}; }
KOKUBAN_INLINE F32 f_load(const float* p) { return {_mm512_loadu_ps(p)}; }
KOKUBAN_INLINE F32 f_load_n(const float* p, int n) { return {_mm512_maskz_loadu_ps(lanes_below(n), p)}; }
KOKUBAN_INLINE void f_store(float* p, F32 x) { _mm512_storeu_ps(p, x.v); }
KOKUBAN_INLINE void f_store_n(float* p, F32 x, int n) { _mm512_mask_storeu_ps(p, lanes_below(n), x.v); }
KOKUBAN_INLINE F32 f_add(F32 x, F32 y) { return {_mm512_add_ps(x.v, y.v)}; }
KOKUBAN_INLINE F32 f_sub(F32 x, F32 y) { return {_mm512_sub_ps(x.v, y.v)}; }
KOKUBAN_INLINE F32 f_mul(F32 x, F32 y) { return {_mm512_mul_ps(x.v, y.v)}; }
KOKUBAN_INLINE F32 f_div(F32 x, F32 y) { return {_mm512_div_ps(x.v, y.v)}; }
KOKUBAN_INLINE F32 f_sqrt(F32 x) { return {_mm512_sqrt_ps(x.v)}; }
KOKUBAN_INLINE F32 f_fma(F32 x, F32 y, F32 z) { return {_mm512_fmadd_ps(x.v, y.v, z.v)}; }
KOKUBAN_INLINE F32 f_fnma(F32 x, F32 y, F32 z) { return {_mm512_fnmadd_ps(x.v, y.v, z.v)}; }
KOKUBAN_INLINE F32 f_max(F32 x, F32 y) { return {_mm512_max_ps(x.v, y.v)}; }
KOKUBAN_INLINE F32 f_min(F32 x, F32 y) { return {_mm512_min_ps(x.v, y.v)}; }
KOKUBAN_INLINE F32 f_abs(F32 x) { return {_mm512_abs_ps(x.v)}; }
KOKUBAN_INLINE F32 f_first_n(F32 x, F32 y, int n) { return {_mm512_mask_blend_ps(lanes_below(n), y.v, x.v)}; }
KOKUBAN_INLINE F32 f_keep_ge(F32 x, F32 limit, F32 y) {
    return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x.v, limit.v, _CMP_GE_OQ), y.v)};
}
KOKUBAN_INLINE uint32_t f_mask_ge(F32 x, F32 limit) { return _mm512_cmp_ps_mask(x.v, limit.v, _CMP_GE_OQ); }

KOKUBAN_INLINE I32 i_set1(int32_t x) { return {_mm512_set1_epi32(x)}; }
KOKUBAN_INLINE I32 i_zero() { return {_mm512_setzero_si512()}; }
KOKUBAN_INLINE I32 i_load(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
KOKUBAN_INLINE void i_store(int32_t* p, I32 x) { _mm512_storeu_si512(p, x.v); }
KOKUBAN_INLINE I32 i_add(I32 x, I32 y) { return {_mm512_add_epi32(x.v, y.v)}; }
KOKUBAN_INLINE I32 i_sub(I32 x, I32 y) { return {_mm512_sub_epi32(x.v, y.v)}; }
KOKUBAN_INLINE I32 i_mul(I32 x, I32 y) { return {_mm512_mullo_epi32(x.v, y.v)}; }
KOKUBAN_INLINE F32 f_from_i(I32 x) { return {_mm512_cvtepi32_ps(x.v)}; }
KOKUBAN_INLINE I32 i_from_f(F32 x) { return {_mm512_cvtps_epi32(x.v)}; }
KOKUBAN_INLINE F32 f_from_bits(I32 x) { return {_mm512_castsi512_ps(x.v)}; }
KOKUBAN_INLINE I32 i_from_bits(F32 x) { return {_mm512_castps_si512(x.v)}; }
template <int kBits>
KOKUBAN_INLINE I32 i_shl(I32 x) { return {_mm512_slli_epi32(x.v, kBits)}; }
template <int kBits>
KOKUBAN_INLINE I32 i_shr(I32 x) { return {_mm512_srli_epi32(x.v, kBits)}; }
KOKUBAN_INLINE I32 i_and(I32 x, I32 y) { return {_mm512_and_si512(x.v, y.v)}; }
KOKUBAN_INLINE I32 i_or(I32 x, I32 y) { return {_mm512_or_si512(x.v, y.v)}; }
KOKUBAN_INLINE I32 i_where_nan(F32 x, I32 a, I32 b) {
    return {_mm512_mask_mov_epi32(b.v, _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q), a.v)};
}
KOKUBAN_INLINE I32 i_load_u8(const uint8_t* p) {
    return {_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
KOKUBAN_INLINE I32 i_load_i8(const int8_t* p) {
    return {_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
KOKUBAN_INLINE I32 i_load_u16(const uint16_t* p) {
    return {_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
KOKUBAN_INLINE void i_store_u16(uint16_t* p, I32 x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(x.v));
}
KOKUBAN_INLINE void i_store_i8(int8_t* p, I32 x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(x.v));
}

KOKUBAN_INLINE I32 i_pairs_from_i8(const int8_t* p) {
    return {_mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
KOKUBAN_INLINE I32 i_even_bytes(I32 x) { return {_mm512_srai_epi16(_mm512_slli_epi16(x.v, 8), 8)}; }
KOKUBAN_INLINE I32 i_odd_bytes(I32 x) { return {_mm512_srai_epi16(x.v, 8)}; }
KOKUBAN_INLINE I32 i_dot_pairs(I32 x, I32 y, I32 z) { return {_mm512_dpwssd_epi32(z.v, x.v, y.v)}; }

KOKUBAN_INLINE float half_to_float(uint16_t h) { return _cvtsh_ss(h); }
KOKUBAN_INLINE uint16_t float_to_half(float f) { return _cvtss_sh(f, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
KOKUBAN_INLINE F32 f_load_f16(const uint16_t* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
KOKUBAN_INLINE void f_store_f16(uint16_t* p, F32 x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm512_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

KOKUBAN_INLINE F32 f_load_e4m3(const uint8_t* p) {
    const __m256i codes = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const __m256i halves = _mm256_and_si256(_mm256_slli_epi16(codes, 7), _mm256_set1_epi16(static_cast<short>(0xbfff)));
    return {_mm512_cvtph_ps(halves)};
}

KOKUBAN_INLINE void f_load_pairs(const float* p, F32* first, F32* second) {
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512 low = _mm512_loadu_ps(p), high = _mm512_loadu_ps(p + 16);
    *first = {_mm512_permutex2var_ps(low, even, high)};
    *second = {_mm512_permutex2var_ps(low, _mm512_or_si512(even, _mm512_set1_epi32(1)), high)};
}
KOKUBAN_INLINE void f_store_pairs(float* p, F32 first, F32 second) {
    const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    _mm512_storeu_ps(p, _mm512_permutex2var_ps(first.v, low, second.v));
    _mm512_storeu_ps(p + 16, _mm512_permutex2var_ps(first.v, high, second.v));
}

KOKUBAN_INLINE float f_reduce_add(F32 x) {
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
KOKUBAN_INLINE float f_reduce_max(F32 x) {
    const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1));
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}

}  // namespace

#include "simd/shared.h"
