#include "kernels/peak/peak.h"

#include "common/variants.h"

namespace kokuban {

extern const PeakKernels peak_kernels_scalar, peak_kernels_avx2, peak_kernels_avx512;

const PeakKernels& peak_kernels(Isa isa) {
    return choose(isa, peak_kernels_scalar, peak_kernels_avx2, peak_kernels_avx512);
}

bool peak_has_bf16(Isa isa) {
#if defined(__x86_64__)
    return isa >= Isa::kAvx512Vnni && __builtin_cpu_supports("avx512bf16");
#else
    return isa >= Isa::kAvx512Vnni;
#endif
}

}  // namespace kokuban
