#include "kernels/elementwise/elementwise.h"

#include "common/variants.h"

namespace kokuban {

const ElementwiseKernels& elementwise_kernels(Isa isa) {
    return choose(isa, elementwise_scalar, elementwise_avx2, elementwise_avx512);
}

}  // namespace kokuban
