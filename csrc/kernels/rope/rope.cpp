#include "kernels/rope/rope.h"

#include "common/variants.h"

namespace kokuban {

const RopeKernels& rope_kernels(Isa isa) {
    return choose(isa, rope_scalar, rope_avx2, rope_avx512);
}

}  // namespace kokuban
