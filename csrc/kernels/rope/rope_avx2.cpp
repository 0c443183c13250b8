#include "simd/avx2.h"

#define KOKUBAN_VARIANT rope_avx2
#include "kernels/rope/rope_impl.h"
