#include "common/isa.h"

namespace kokuban {

Isa detect_isa() {
#if defined(__x86_64__)
    // __builtin_cpu_supports asks CPUID and, for the AVX family, XCR0: the operating system must
    // save the wide registers as well.
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                      __builtin_cpu_supports("f16c");
    if (!avx2) return Isa::kScalar;
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    if (avx512 && __builtin_cpu_supports("avx512vnni")) return Isa::kAvx512Vnni;
    return avx512 ? Isa::kAvx512 : Isa::kAvx2;
#else
    return Isa::kScalar;
#endif
}

Isa capped_isa(int cap) {
    const int best = static_cast<int>(detect_isa());
    return static_cast<Isa>(cap >= 0 && cap < best ? cap : best);
}

}  // namespace kokuban
