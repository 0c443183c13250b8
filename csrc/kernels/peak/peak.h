// Probes of the machine's limits: what an instruction set can do at best, without memory or with
// nothing else. They are the yardsticks of `bench machine` and `bench kernels`; no model runs them.
//
// Arithmetic. A probe multiplies ones by ones and adds up, in registers only, kPeakRounds times on
// each accumulator. So the sum of all accumulators is the number of multiplications, which proves
// that they happened, and all of it is exact.
//
//   fma           f32: the fused multiply-add, or a multiplication and an addition where there is none
//   int8          u8 x i8, summed as narrow as the instruction set can: avx2 keeps 16 bits (vpmaddubsw,
//                 vpaddw: an upper bound that no format reaches, since sums must be widened at some
//                 time), avx512 32 bits (vpdpbusd)
//   int8_widened  the same with each sum widened to 32 bits at once
//   bf16          vdpbf16ps; none where the processor lacks it
//
// Memory. `read` adds up the 64-bit words of a piece of memory, modulo 2^64.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "common/isa.h"

namespace kokuban {

constexpr int kPeakRounds = 4096;  // some 10 µs; sums of 16 bits stay below 2 * 4096

// An arithmetic probe. `run` returns the sum of its accumulators, which is `products`.
struct PeakProbe {
    double (*run)();
    int64_t products;  // multiplications of one run; each comes with an addition
};

constexpr size_t kPeakReadBytes = 512;  // `read` takes a multiple of it

struct PeakKernels {
    PeakProbe fma, int8, int8_widened, bf16;
    uint64_t (*read)(const uint8_t* p, size_t bytes);
};

// The best variant that the level can run. Its bf16 must only run where peak_has_bf16.
const PeakKernels& peak_kernels(Isa isa);
bool peak_has_bf16(Isa isa);

}  // namespace kokuban
