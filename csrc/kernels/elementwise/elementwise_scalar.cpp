#include "simd/scalar.h"

#define KOKUBAN_VARIANT elementwise_scalar
#include "kernels/elementwise/elementwise_impl.h"
