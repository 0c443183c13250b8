#include "simd/avx512.h"

#define KOKUBAN_VARIANT elementwise_avx512
#include "kernels/elementwise/elementwise_impl.h"
