#include "simd/avx2.h"

#define KOKUBAN_VARIANT elementwise_avx2
#include "kernels/elementwise/elementwise_impl.h"
