#include "kernels/rms_norm/rms_norm.h"

#include "common/variants.h"

namespace kokuban {

const RmsNormKernels& rms_norm_kernels(Isa isa) {
    return choose(isa, rms_norm_scalar, rms_norm_avx2, rms_norm_avx512);
}

}  // namespace kokuban
