#include "simd/scalar.h"

#define KOKUBAN_VARIANT rope_scalar
#include "kernels/rope/rope_impl.h"
