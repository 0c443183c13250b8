// Rotary position embedding, in place: each pair (a, b) of a head becomes
//
//   (a cos - b sin, b cos + a sin)
//
//   x            rows [begin, end) of `num_heads` heads of `head_dim` columns, side by side
//   table        float32 [P][2][rotary_dim / 2]: for each position the cosines, then the sines
//   positions    [rows] int32: the row of `table` that each row of x takes
//   rotary_dim   even, at most head_dim; the columns of a head after it stay as they are
//   interleaved  pair i is (2 i, 2 i + 1); else it is (i, i + rotary_dim / 2)
//
// Each output is rounded twice: the product with cos, then one fused multiply-add. Same bits on
// every instruction set. Source: Su et al. 2021, section 3.4.2.
#pragma once

#include "common/isa.h"
#include "common/matrix.h"

namespace kokuban {

struct RopeTable {
    const float* cos_sin;
    int64_t rotary_dim;
    bool interleaved;
};

struct RopeKernels {
    void (*rope)(Matrix x, int64_t num_heads, int64_t head_dim, RopeTable table,
                 const int32_t* positions, int64_t begin, int64_t end);
};

extern const RopeKernels rope_scalar, rope_avx2, rope_avx512;

const RopeKernels& rope_kernels(Isa isa);

}  // namespace kokuban
