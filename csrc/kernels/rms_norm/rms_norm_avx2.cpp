#include "simd/avx2.h"

#define KOKUBAN_VARIANT rms_norm_avx2
#include "kernels/rms_norm/rms_norm_impl.h"
