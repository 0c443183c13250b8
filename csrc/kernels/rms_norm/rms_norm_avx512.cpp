#include "simd/avx512.h"

#define KOKUBAN_VARIANT rms_norm_avx512
#include "kernels/rms_norm/rms_norm_impl.h"
