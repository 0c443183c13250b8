// Rotary embedding over sixteen lanes. Included after one of simd/*.h; KOKUBAN_VARIANT is the name
// of the table to define.
#include "kernels/rope/rope.h"

namespace {

struct Pair {
    F32 a, b;
};

KOKUBAN_INLINE Pair rotate(Pair x, F32 cosines, F32 sines) {
    return {f_fnma(x.b, sines, f_mul(x.a, cosines)), f_fma(x.a, sines, f_mul(x.b, cosines))};
}

KOKUBAN_INLINE void rotate_halves(float* x, const float* cosines, const float* sines, int64_t half) {
    int64_t i = 0;
    for (; i + kLanes <= half; i += kLanes) {
        const Pair y = rotate({f_load(x + i), f_load(x + half + i)}, f_load(cosines + i), f_load(sines + i));
        f_store(x + i, y.a);
        f_store(x + half + i, y.b);
    }
    if (i < half) {
        const int n = static_cast<int>(half - i);
        const Pair y = rotate({f_load_n(x + i, n), f_load_n(x + half + i, n)}, f_load_n(cosines + i, n),
                              f_load_n(sines + i, n));
        f_store_n(x + i, y.a, n);
        f_store_n(x + half + i, y.b, n);
    }
}

KOKUBAN_INLINE void rotate_interleaved(float* x, const float* cosines, const float* sines, int64_t half) {
    int64_t i = 0;
    for (; i + kLanes <= half; i += kLanes) {
        Pair y;
        f_load_pairs(x + 2 * i, &y.a, &y.b);
        y = rotate(y, f_load(cosines + i), f_load(sines + i));
        f_store_pairs(x + 2 * i, y.a, y.b);
    }
    if (i < half) {
        const int n = static_cast<int>(half - i);
        float pairs[2 * kLanes] = {};
        memcpy(pairs, x + 2 * i, 2 * sizeof(float) * static_cast<size_t>(n));
        Pair y;
        f_load_pairs(pairs, &y.a, &y.b);
        y = rotate(y, f_load_n(cosines + i, n), f_load_n(sines + i, n));
        f_store_pairs(pairs, y.a, y.b);
        memcpy(x + 2 * i, pairs, 2 * sizeof(float) * static_cast<size_t>(n));
    }
}

void rope(kokuban::Matrix x, int64_t num_heads, int64_t head_dim, kokuban::RopeTable table,
          const int32_t* positions, int64_t begin, int64_t end) {
    const int64_t half = table.rotary_dim / 2;
    for (int64_t row = begin; row < end; ++row) {
        const float* cosines = table.cos_sin + positions[row] * table.rotary_dim;
        const float* sines = cosines + half;
        for (int64_t head = 0; head < num_heads; ++head) {
            float* p = x.data + row * x.stride + head * head_dim;
            if (table.interleaved) {
                rotate_interleaved(p, cosines, sines, half);
            } else {
                rotate_halves(p, cosines, sines, half);
            }
        }
    }
}

}  // namespace

const kokuban::RopeKernels kokuban::KOKUBAN_VARIANT{rope};
