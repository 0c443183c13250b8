#include "simd/scalar.h"

#define KOKUBAN_VARIANT lanes_scalar
#include "kernels/lanes/lanes_impl.h"
