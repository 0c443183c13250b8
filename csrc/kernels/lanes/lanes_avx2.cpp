#include "simd/avx2.h"

#define KOKUBAN_VARIANT lanes_avx2
#include "kernels/lanes/lanes_impl.h"
