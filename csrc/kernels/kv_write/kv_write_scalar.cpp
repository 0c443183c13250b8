#include "simd/scalar.h"

#define KOKUBAN_VARIANT kv_write_scalar
#include "kernels/kv_write/kv_write_impl.h"
