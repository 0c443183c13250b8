// out = x / sqrt(mean(x^2) + eps) * weight over each run of `dim` columns.
//
//   x, out   rows [begin, end) of `runs` runs, side by side: columns run * dim up to (run + 1) * dim.
//            runs = 1 is the norm of a whole row, runs = number of heads the norm of each head.
//            out may be x, but must not overlap it otherwise.
//   weight   [dim]
//   dim      any number above 0
//
// The sum of squares has sixteen accumulators (column i of a run adds to the one of i % 16, in
// ascending order), which are added in the tree of f_reduce_add. Within 1e-6 of the exact result,
// relative, for dim <= 16384 (tests/kernels/test_rms_norm.py). Same bits on every instruction set.
#pragma once

#include "common/isa.h"
#include "common/matrix.h"

namespace kokuban {

struct RmsNormKernels {
    void (*rms_norm)(ConstMatrix x, const float* weight, float eps, int64_t dim, int64_t runs,
                     Matrix out, int64_t begin, int64_t end);
};

extern const RmsNormKernels rms_norm_scalar, rms_norm_avx2, rms_norm_avx512;

const RmsNormKernels& rms_norm_kernels(Isa isa);

}  // namespace kokuban
