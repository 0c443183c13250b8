// RMS norm over sixteen lanes. Included after one of simd/*.h; KOKUBAN_VARIANT is the name of the
// table to define.
#include "kernels/rms_norm/rms_norm.h"

namespace {

KOKUBAN_INLINE float sum_of_squares(const float* x, int64_t dim) {
    F32 sums = f_zero();
    int64_t i = 0;
    for (; i + kLanes <= dim; i += kLanes) {
        const F32 v = f_load(x + i);
        sums = f_fma(v, v, sums);
    }
    if (i < dim) {
        const F32 v = f_load_n(x + i, static_cast<int>(dim - i));
        sums = f_fma(v, v, sums);
    }
    return f_reduce_add(sums);
}

KOKUBAN_INLINE void norm_run(const float* x, const float* weight, float eps, int64_t dim, float* out) {
    const float mean = sum_of_squares(x, dim) / static_cast<float>(dim);
    const F32 scale = f_div(f_set1(1.0f), f_sqrt(f_set1(mean + eps)));
    int64_t i = 0;
    for (; i + kLanes <= dim; i += kLanes) {
        f_store(out + i, f_mul(f_mul(f_load(x + i), scale), f_load(weight + i)));
    }
    if (i < dim) {
        const int n = static_cast<int>(dim - i);
        f_store_n(out + i, f_mul(f_mul(f_load_n(x + i, n), scale), f_load_n(weight + i, n)), n);
    }
}

void rms_norm(kokuban::ConstMatrix x, const float* weight, float eps, int64_t dim, int64_t runs,
              kokuban::Matrix out, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
        for (int64_t run = 0; run < runs; ++run) {
            norm_run(x.data + row * x.stride + run * dim, weight, eps, dim,
                     out.data + row * out.stride + run * dim);
        }
    }
}

}  // namespace

const kokuban::RmsNormKernels kokuban::KOKUBAN_VARIANT{rms_norm};
