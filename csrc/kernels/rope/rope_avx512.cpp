#include "simd/avx512.h"

#define KOKUBAN_VARIANT rope_avx512
#include "kernels/rope/rope_impl.h"
