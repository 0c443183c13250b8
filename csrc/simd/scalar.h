// Sixteen lanes in plain C++: the definition of every operation in this folder.
//
// scalar.h, avx2.h and avx512.h declare the same names in an unnamed namespace, so that a kernel is
// written once over sixteen lanes and compiled once for each instruction set, and nothing compiled
// for one leaks into another. All three give the same bits for every input but NaN payloads:
// fma rounds once, conversions round to nearest even, sums over lanes go in one fixed tree.
#pragma once

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define KOKUBAN_INLINE [[maybe_unused]] static inline __attribute__((always_inline))

namespace {

constexpr int kLanes = 16;

struct F32 {
    float v[kLanes];
};
struct I32 {
    int32_t v[kLanes];
};

#define KOKUBAN_EACH for (int i = 0; i < kLanes; ++i)

KOKUBAN_INLINE F32 f_set1(float x) { F32 r; KOKUBAN_EACH r.v[i] = x; return r; }
KOKUBAN_INLINE F32 f_zero() { return f_set1(0.0f); }
KOKUBAN_INLINE F32 f_load(const float* p) { F32 r; KOKUBAN_EACH r.v[i] = p[i]; return r; }
// Lanes from n on are 0 and their memory is not read.
KOKUBAN_INLINE F32 f_load_n(const float* p, int n) { F32 r; KOKUBAN_EACH r.v[i] = i < n ? p[i] : 0.0f; return r; }
KOKUBAN_INLINE void f_store(float* p, F32 a) { KOKUBAN_EACH p[i] = a.v[i]; }
KOKUBAN_INLINE void f_store_n(float* p, F32 a, int n) { KOKUBAN_EACH if (i < n) p[i] = a.v[i]; }
KOKUBAN_INLINE F32 f_add(F32 a, F32 b) { KOKUBAN_EACH a.v[i] += b.v[i]; return a; }
KOKUBAN_INLINE F32 f_sub(F32 a, F32 b) { KOKUBAN_EACH a.v[i] -= b.v[i]; return a; }
KOKUBAN_INLINE F32 f_mul(F32 a, F32 b) { KOKUBAN_EACH a.v[i] *= b.v[i]; return a; }
KOKUBAN_INLINE F32 f_div(F32 a, F32 b) { KOKUBAN_EACH a.v[i] /= b.v[i]; return a; }
KOKUBAN_INLINE F32 f_sqrt(F32 a) { KOKUBAN_EACH a.v[i] = __builtin_sqrtf(a.v[i]); return a; }
// a * b + c, rounded once.
KOKUBAN_INLINE F32 f_fma(F32 a, F32 b, F32 c) { KOKUBAN_EACH c.v[i] = __builtin_fmaf(a.v[i], b.v[i], c.v[i]); return c; }
// c - a * b, rounded once.
KOKUBAN_INLINE F32 f_fnma(F32 a, F32 b, F32 c) { KOKUBAN_EACH c.v[i] = __builtin_fmaf(-a.v[i], b.v[i], c.v[i]); return c; }
// As the instructions do it: b when either is NaN.
KOKUBAN_INLINE F32 f_max(F32 a, F32 b) { KOKUBAN_EACH a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i]; return a; }
KOKUBAN_INLINE F32 f_min(F32 a, F32 b) { KOKUBAN_EACH a.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i]; return a; }
KOKUBAN_INLINE F32 f_abs(F32 a) { KOKUBAN_EACH a.v[i] = __builtin_fabsf(a.v[i]); return a; }
// The first n lanes of a, the others of b.
KOKUBAN_INLINE F32 f_first_n(F32 a, F32 b, int n) { KOKUBAN_EACH a.v[i] = i < n ? a.v[i] : b.v[i]; return a; }
// x in the lanes where a >= limit, 0 in the others (and where either is NaN).
KOKUBAN_INLINE F32 f_keep_ge(F32 a, F32 limit, F32 x) { KOKUBAN_EACH x.v[i] = a.v[i] >= limit.v[i] ? x.v[i] : 0.0f; return x; }
// Bit i is set where lane i of a >= that of limit; clear where either is NaN.
KOKUBAN_INLINE uint32_t f_mask_ge(F32 a, F32 limit) { uint32_t r = 0; KOKUBAN_EACH r |= static_cast<uint32_t>(a.v[i] >= limit.v[i]) << i; return r; }

KOKUBAN_INLINE I32 i_set1(int32_t x) { I32 r; KOKUBAN_EACH r.v[i] = x; return r; }
KOKUBAN_INLINE I32 i_zero() { return i_set1(0); }
KOKUBAN_INLINE I32 i_load(const int32_t* p) { I32 r; KOKUBAN_EACH r.v[i] = p[i]; return r; }
KOKUBAN_INLINE void i_store(int32_t* p, I32 a) { KOKUBAN_EACH p[i] = a.v[i]; }
KOKUBAN_INLINE I32 i_add(I32 a, I32 b) { KOKUBAN_EACH a.v[i] = static_cast<int32_t>(static_cast<uint32_t>(a.v[i]) + static_cast<uint32_t>(b.v[i])); return a; }
KOKUBAN_INLINE I32 i_sub(I32 a, I32 b) { KOKUBAN_EACH a.v[i] = static_cast<int32_t>(static_cast<uint32_t>(a.v[i]) - static_cast<uint32_t>(b.v[i])); return a; }
KOKUBAN_INLINE I32 i_mul(I32 a, I32 b) { KOKUBAN_EACH a.v[i] = static_cast<int32_t>(static_cast<uint32_t>(a.v[i]) * static_cast<uint32_t>(b.v[i])); return a; }
KOKUBAN_INLINE F32 f_from_i(I32 a) { F32 r; KOKUBAN_EACH r.v[i] = static_cast<float>(a.v[i]); return r; }
// To the nearest integer, ties to even. NaN and what does not fit give INT32_MIN.
KOKUBAN_INLINE I32 i_from_f(F32 a) {
    I32 r;
    KOKUBAN_EACH {
        const float x = __builtin_rintf(a.v[i]);
        r.v[i] = x >= -2147483648.0f && x < 2147483648.0f ? static_cast<int32_t>(x) : INT32_MIN;
    }
    return r;
}
KOKUBAN_INLINE F32 f_from_bits(I32 a) { F32 r; memcpy(&r, &a, sizeof r); return r; }
KOKUBAN_INLINE I32 i_from_bits(F32 a) { I32 r; memcpy(&r, &a, sizeof r); return r; }
template <int kBits>
KOKUBAN_INLINE I32 i_shl(I32 a) { KOKUBAN_EACH a.v[i] = static_cast<int32_t>(static_cast<uint32_t>(a.v[i]) << kBits); return a; }
template <int kBits>
KOKUBAN_INLINE I32 i_shr(I32 a) { KOKUBAN_EACH a.v[i] = static_cast<int32_t>(static_cast<uint32_t>(a.v[i]) >> kBits); return a; }
KOKUBAN_INLINE I32 i_and(I32 a, I32 b) { KOKUBAN_EACH a.v[i] &= b.v[i]; return a; }
KOKUBAN_INLINE I32 i_or(I32 a, I32 b) { KOKUBAN_EACH a.v[i] |= b.v[i]; return a; }
// Lanes of a where x is NaN, of b elsewhere.
KOKUBAN_INLINE I32 i_where_nan(F32 x, I32 a, I32 b) { KOKUBAN_EACH b.v[i] = x.v[i] != x.v[i] ? a.v[i] : b.v[i]; return b; }
// Sixteen bytes or 16-bit words, widened.
KOKUBAN_INLINE I32 i_load_u8(const uint8_t* p) { I32 r; KOKUBAN_EACH r.v[i] = p[i]; return r; }
KOKUBAN_INLINE I32 i_load_i8(const int8_t* p) { I32 r; KOKUBAN_EACH r.v[i] = p[i]; return r; }
KOKUBAN_INLINE I32 i_load_u16(const uint16_t* p) { I32 r; KOKUBAN_EACH r.v[i] = p[i]; return r; }
// To 16 bits, cut; the lanes hold values below 65536.
KOKUBAN_INLINE void i_store_u16(uint16_t* p, I32 a) { KOKUBAN_EACH p[i] = static_cast<uint16_t>(a.v[i]); }
// To 8 bits with saturation to -128 … 127.
KOKUBAN_INLINE void i_store_i8(int8_t* p, I32 a) { KOKUBAN_EACH p[i] = static_cast<int8_t>(a.v[i] > 127 ? 127 : a.v[i] < -128 ? -128 : a.v[i]); }

// A pair is the two 16-bit integers of one lane. Sixteen pairs of bytes, widened:
KOKUBAN_INLINE I32 i_pairs_from_i8(const int8_t* p) { I32 r; KOKUBAN_EACH r.v[i] = (static_cast<int32_t>(p[2 * i + 1]) * 65536) | (p[2 * i] & 0xffff); return r; }
// Bytes 0 and 2 of each lane, widened to a pair; then bytes 1 and 3.
KOKUBAN_INLINE I32 i_even_bytes(I32 a) { KOKUBAN_EACH a.v[i] = (static_cast<int8_t>(a.v[i] >> 16) * 65536) | (static_cast<int8_t>(a.v[i]) & 0xffff); return a; }
KOKUBAN_INLINE I32 i_odd_bytes(I32 a) { KOKUBAN_EACH a.v[i] = (static_cast<int8_t>(a.v[i] >> 24) * 65536) | (static_cast<int8_t>(a.v[i] >> 8) & 0xffff); return a; }
// c plus both products of the pairs of a and b. No pair is twice -32768.
KOKUBAN_INLINE I32 i_dot_pairs(I32 a, I32 b, I32 c) {
    I32 low, high;
    KOKUBAN_EACH {
        low.v[i] = static_cast<int16_t>(a.v[i]) * static_cast<int16_t>(b.v[i]);
        high.v[i] = (a.v[i] >> 16) * (b.v[i] >> 16);
    }
    return i_add(i_add(low, high), c);
}

KOKUBAN_INLINE float half_to_float(uint16_t h) {
    const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16;
    const uint32_t exponent = (h >> 10) & 31, mantissa = h & 1023;
    uint32_t bits;
    if (exponent == 31) {
        bits = sign | 0x7f800000u | (mantissa << 13) | (mantissa ? 0x400000u : 0u);
    } else if (exponent) {
        bits = sign | ((exponent + 112) << 23) | (mantissa << 13);
    } else {
        const float tiny = static_cast<float>(mantissa) * 5.9604644775390625e-8f;  // 2^-24
        memcpy(&bits, &tiny, 4);
        bits |= sign;
    }
    float r;
    memcpy(&r, &bits, 4);
    return r;
}
KOKUBAN_INLINE uint16_t float_to_half(float f) {
    uint32_t bits;
    memcpy(&bits, &f, 4);
    const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
    bits &= 0x7fffffff;
    if (bits > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00 | ((bits >> 13) & 0x3ff));
    if (bits >= 0x47800000) return static_cast<uint16_t>(sign | 0x7c00);
    if (bits < 0x38800000) {  // denormal in half precision: let the float unit round
        float magnitude;
        memcpy(&magnitude, &bits, 4);
        magnitude += 0.5f;
        memcpy(&bits, &magnitude, 4);
        return static_cast<uint16_t>(sign | (bits - 0x3f000000));
    }
    bits += 0xfff + ((bits >> 13) & 1);
    return static_cast<uint16_t>(sign | ((bits - 0x38000000) >> 13));
}
KOKUBAN_INLINE F32 f_load_f16(const uint16_t* p) { F32 r; KOKUBAN_EACH r.v[i] = half_to_float(p[i]); return r; }
KOKUBAN_INLINE void f_store_f16(uint16_t* p, F32 a) { KOKUBAN_EACH p[i] = float_to_half(a.v[i]); }

// Sixteen e4m3 codes, each as 1/256 of its value: sign, exponent and mantissa fit in half precision,
// whose bias is eight more.
KOKUBAN_INLINE F32 f_load_e4m3(const uint8_t* p) { F32 r; KOKUBAN_EACH r.v[i] = half_to_float(static_cast<uint16_t>((p[i] & 0x80) << 8 | (p[i] & 0x7f) << 7)); return r; }

// Sixteen pairs taken apart: 32 floats, of which `first` gets the even and `second` the odd ones.
KOKUBAN_INLINE void f_load_pairs(const float* p, F32* first, F32* second) { KOKUBAN_EACH { first->v[i] = p[2 * i]; second->v[i] = p[2 * i + 1]; } }
KOKUBAN_INLINE void f_store_pairs(float* p, F32 first, F32 second) { KOKUBAN_EACH { p[2 * i] = first.v[i]; p[2 * i + 1] = second.v[i]; } }

// One fixed tree: lane i with i + 8, then i + 4, i + 2, i + 1.
KOKUBAN_INLINE float f_reduce_add(F32 a) {
    for (int width = 8; width; width /= 2)
        for (int i = 0; i < width; ++i) a.v[i] += a.v[i + width];
    return a.v[0];
}
KOKUBAN_INLINE float f_reduce_max(F32 a) {
    for (int width = 8; width; width /= 2)
        for (int i = 0; i < width; ++i) a.v[i] = a.v[i] > a.v[i + width] ? a.v[i] : a.v[i + width];
    return a.v[0];
}

#undef KOKUBAN_EACH

}  // namespace

#include "simd/shared.h"
