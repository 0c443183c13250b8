#include "simd/scalar.h"

#define KOKUBAN_VARIANT rms_norm_scalar
#include "kernels/rms_norm/rms_norm_impl.h"
