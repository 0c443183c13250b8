// Windows into csrc/simd for its tests: what no kernel shows by itself. `count` is a multiple of 16.
#pragma once

#include <stdint.h>

#include "common/isa.h"

namespace kokuban {

struct LaneKernels {
    void (*exp)(const float* x, float* out, int64_t count);
    void (*tanh)(const float* x, float* out, int64_t count);
    void (*sigmoid)(const float* x, float* out, int64_t count);
    // out[i] = the sum, or the largest, of the sixteen floats from x[16 i] on.
    void (*reduce_add)(const float* x, float* out, int64_t count);
    void (*reduce_max)(const float* x, float* out, int64_t count);
    // To the 16-bit type and back.
    void (*through_bf16)(const float* x, float* out, int64_t count);
    void (*through_f16)(const float* x, float* out, int64_t count);
    // To the nearest integer in 32 bits and back.
    void (*through_i32)(const float* x, float* out, int64_t count);
    // The first 5 of every sixteen; the others 0.
    void (*first_five)(const float* x, float* out, int64_t count);
    // Pairs apart and together again, the two of each exchanged; `count` a multiple of 32.
    void (*exchange_pairs)(const float* x, float* out, int64_t count);
    void (*exp2_below)(const float* x, float* out, int64_t count);
};

extern const LaneKernels lanes_scalar, lanes_avx2, lanes_avx512;

const LaneKernels& lane_kernels(Isa isa);

}  // namespace kokuban
