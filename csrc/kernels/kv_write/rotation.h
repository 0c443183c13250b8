// The rotation of K and of queries under int8. Included after one of simd/*.h.
//
// Some models have a few elements of K that are a hundred times the others, the same in every token
// (the biases of Qwen2.5). One scale for a row would leave the others a handful of codes. A Hadamard
// matrix H spreads each element over all, and q·k is what it was: (H q)·(H k) = n q·k. Both are divided
// by n first, so that no sum is larger than the largest element; what is missing is one factor n.
//
// H is symmetric and its square is n: H (H (x / n)) = x. It works in runs of n elements, n being the
// largest power of two that divides D.
//
// Source: Ashkboos et al. 2024, "QuaRot", section 3.
#pragma once

namespace {

KOKUBAN_INLINE int64_t rotation_size(int64_t head_dim) { return head_dim & -head_dim; }

// out = H (x / n). Sums of two elements 1 apart, then 2 apart, 4 apart and so on: plain additions, the
// same in every instruction set.
KOKUBAN_INLINE void rotate(const float* x, int64_t head_dim, float* out) {
    const int64_t n = rotation_size(head_dim);
    const float share = 1.0f / static_cast<float>(n);
    for (int64_t i = 0; i < head_dim; ++i) out[i] = x[i] * share;
    for (int64_t apart = 1; apart < n; apart *= 2) {
        for (int64_t run = 0; run < head_dim; run += 2 * apart) {
            float *low = out + run, *high = low + apart;
            for (int64_t i = 0; i < apart; ++i) {
                const float sum = low[i] + high[i], difference = low[i] - high[i];
                low[i] = sum;
                high[i] = difference;
            }
        }
    }
}

}  // namespace
