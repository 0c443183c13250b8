#include "simd/avx512.h"

#define KOKUBAN_VARIANT lanes_avx512
#include "kernels/lanes/lanes_impl.h"
