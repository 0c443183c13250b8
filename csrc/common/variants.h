// Chooses among the variants of a kernel: the best one that the level can run.
//
// Each kernel has one table of function pointers (`struct XxxKernels`) for each instruction set,
// constant-initialised, and hands the three to `choose`. A level between two variants takes the
// lower one.
#pragma once

#include "common/isa.h"

namespace kokuban {

template <typename Kernels>
const Kernels& choose(Isa isa, const Kernels& scalar, const Kernels& avx2, const Kernels& avx512vnni) {
    if (isa >= Isa::kAvx512Vnni) return avx512vnni;
    return isa >= Isa::kAvx2 ? avx2 : scalar;
}

}  // namespace kokuban
