// The passes of passes.h over sixteen lanes. Included after one of simd/{scalar,avx2,avx512}.h.
#pragma once

#include "kernels/sampling/passes.h"

namespace {

constexpr float kMinusInfinity = -__builtin_inff();

KOKUBAN_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// Sixteen logits from p on; lanes from `left` on are -inf.
KOKUBAN_INLINE F32 load_logits(const float* p, int64_t left) {
    if (left >= kLanes) return f_load(p);
    const int lanes = static_cast<int>(left);
    return f_first_n(f_load_n(p, lanes), f_set1(kMinusInfinity), lanes);
}

bool scan(const float* x, int64_t count, float* block_max, float* max) {
    // 0 * logit is 0 unless the logit is NaN or infinite; -inf is raised to a finite one before.
    const F32 lowest = f_set1(-__FLT_MAX__);
    F32 bad = f_zero();
    float best = kMinusInfinity;
    for (int64_t begin = 0; begin < count; begin += kokuban::kBlock) {
        const int64_t end = smaller(begin + kokuban::kBlock, count);
        F32 block = f_set1(kMinusInfinity), block_bad = f_zero();
        for (int64_t i = begin; i < end; i += kLanes) {
            const F32 v = load_logits(x + i, end - i);
            block = f_max(block, v);
            block_bad = f_fma(f_max(lowest, v), f_zero(), block_bad);
        }
        bad = f_add(bad, block_bad);
        const float largest = f_reduce_max(block);
        block_max[begin / kokuban::kBlock] = largest;
        best = largest > best ? largest : best;
    }
    *max = best;
    return f_reduce_add(bad) == 0.0f;  // NaN equals nothing
}

KOKUBAN_INLINE F32 weigh(F32 v, const kokuban::Weighing& weighing) {
    const F32 y = f_mul(f_sub(v, f_set1(weighing.max)), f_set1(weighing.inv_temperature));
    return f_keep_ge(y, f_set1(weighing.floor), f_exp(y));
}

void weight_sums(const float* x, int64_t count, const float* block_max, kokuban::Weighing weighing,
                 float* sums) {
    for (int64_t begin = 0; begin < count; begin += kokuban::kBlock) {
        const int64_t b = begin / kokuban::kBlock;
        // Rounding is monotonic: when the largest has no weight, none has.
        if (!((block_max[b] - weighing.max) * weighing.inv_temperature >= weighing.floor)) {
            sums[b] = 0.0f;
            continue;
        }
        const int64_t end = smaller(begin + kokuban::kBlock, count);
        F32 sum = f_zero();
        for (int64_t i = begin; i < end; i += kLanes)
            sum = f_add(sum, weigh(load_logits(x + i, end - i), weighing));
        sums[b] = f_reduce_add(sum);
    }
}

void weights(const float* x, int64_t count, kokuban::Weighing weighing, float* out) {
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) f_store(out + i, weigh(f_load(x + i), weighing));
    if (i < count)
        f_store_n(out + i, weigh(load_logits(x + i, count - i), weighing), static_cast<int>(count - i));
}

int64_t collect(const float* x, int64_t count, const float* block_max, float threshold, int32_t* ids,
                float* values) {
    int64_t found = 0;
    const F32 limit = f_set1(threshold);
    for (int64_t begin = 0; begin < count; begin += kokuban::kBlock) {
        if (!(block_max[begin / kokuban::kBlock] >= threshold)) continue;
        const int64_t end = smaller(begin + kokuban::kBlock, count);
        for (int64_t i = begin; i < end; i += kLanes) {
            uint32_t mask = f_mask_ge(load_logits(x + i, end - i), limit);
            for (; mask; mask &= mask - 1) {
                const int64_t id = i + __builtin_ctz(mask);
                ids[found] = static_cast<int32_t>(id);
                values[found++] = x[id];
            }
        }
    }
    return found;
}

alignas(64) constexpr int32_t kLaneBits[kLanes] = {1 << 0,  1 << 1,  1 << 2,  1 << 3, 1 << 4,  1 << 5,
                                                   1 << 6,  1 << 7,  1 << 8,  1 << 9, 1 << 10, 1 << 11,
                                                   1 << 12, 1 << 13, 1 << 14, 1 << 15};

// x in the lanes whose bit is set, -inf in the others.
KOKUBAN_INLINE F32 only(F32 x, uint32_t bits) {
    const F32 is_set = f_from_i(i_and(i_set1(static_cast<int32_t>(bits)), i_load(kLaneBits)));
    const F32 kept = f_keep_ge(is_set, f_set1(1.0f), x);
    const F32 others = f_keep_ge(f_zero(), is_set, f_set1(kMinusInfinity));
    return f_from_bits(i_or(i_from_bits(kept), i_from_bits(others)));
}

void mask(const float* x, int64_t count, const uint32_t* allowed, float* out) {
    for (int64_t i = 0; i < count; i += kLanes) {
        const uint32_t bits = allowed[i / 32] >> (i % 32) & 0xffffu;
        const int64_t left = count - i;
        if (left >= kLanes)
            f_store(out + i, only(f_load(x + i), bits));
        else
            f_store_n(out + i, only(load_logits(x + i, left), bits), static_cast<int>(left));
    }
}

constexpr kokuban::SamplingPasses kPasses{scan, weight_sums, weights, collect, mask};

}  // namespace
