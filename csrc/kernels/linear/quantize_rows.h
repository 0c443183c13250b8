// Activations to int8, over the sixteen-lane operations. Included by each variant after its own
// simd header.
#pragma once

#include "kernels/linear/linear.h"

namespace kokuban {
namespace {

constexpr float kSmallestAmax = 1e-30f;  // below, 127 / amax could overflow

// Of sixteen q: the sum, and that of the ones whose place modulo 4 is 0 or 1.
struct HalfSums {
    int32_t all, pairs;
};
KOKUBAN_INLINE HalfSums sum_half(I32 q) {
    alignas(64) static constexpr int32_t kPairs[16] = {-1, -1, 0, 0, -1, -1, 0, 0, -1, -1, 0, 0, -1, -1, 0, 0};
    // Sums of sixteen whole numbers below 128: exact in f32.
    return {static_cast<int32_t>(f_reduce_add(f_from_i(q))),
            static_cast<int32_t>(f_reduce_add(f_from_i(i_and(q, i_load(kPairs)))))};
}
KOKUBAN_INLINE void store_pairs(HalfSums sums, int16_t (&to)[2]) {
    to[0] = static_cast<int16_t>(sums.pairs);
    to[1] = static_cast<int16_t>(sums.all - sums.pairs);
}

KOKUBAN_INLINE void quantize_group(const float* x, QuantizedGroup& out) {
    const F32 first = f_load(x), second = f_load(x + 16);
    const float amax = f_reduce_max(f_max(f_abs(first), f_abs(second)));
    // x - x is 0 unless x is not finite; f_max may lose a NaN, this sum cannot.
    const float probe = f_reduce_add(f_add(f_sub(first, first), f_sub(second, second)));
    const bool finite = probe == 0.0f;
    const bool zero = !finite || amax < kSmallestAmax;
    const F32 inverse = f_set1(zero ? 0.0f : 127.0f / amax);
    const I32 q0 = finite ? i_from_f(f_mul(first, inverse)) : i_zero();
    const I32 q1 = finite ? i_from_f(f_mul(second, inverse)) : i_zero();
    i_store_i8(out.q, q0);
    i_store_i8(out.q + 16, q1);
    const HalfSums first_sums = sum_half(q0), second_sums = sum_half(q1);
    out.sum = first_sums.all + second_sums.all;
    store_pairs(first_sums, out.pair_sums[0]);
    store_pairs(second_sums, out.pair_sums[1]);
    out.d = !finite ? __builtin_nanf("") : zero ? 0.0f : amax / 127.0f;
    out.d_sum = out.d * static_cast<float>(out.sum);
}

// Where the record of a row's first group lies, and how far it is to the next group's.
struct RowPlace {
    int64_t first, step;
};
KOKUBAN_INLINE RowPlace row_place(int64_t row, int64_t rows, int64_t groups) {
    const int64_t block = row / kRowBlock * kRowBlock;
    const int64_t in_block = rows - block < kRowBlock ? rows - block : kRowBlock;
    return {block * groups + (row - block), in_block};
}

void quantize_rows(const float* x, int64_t x_stride, int64_t rows, int64_t k, int64_t row_begin,
                   int64_t row_end, QuantizedGroup* out) {
    const int64_t groups = k / kGroup;
    for (int64_t row = row_begin; row < row_end; ++row) {
        const RowPlace place = row_place(row, rows, groups);
        QuantizedGroup* group = out + place.first;
        for (int64_t g = 0; g < groups; ++g, group += place.step) {
            quantize_group(x + row * x_stride + g * kGroup, *group);
        }
    }
}

}  // namespace
}  // namespace kokuban
