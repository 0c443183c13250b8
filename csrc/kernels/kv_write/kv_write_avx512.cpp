#include "simd/avx512.h"

#define KOKUBAN_VARIANT kv_write_avx512
#include "kernels/kv_write/kv_write_impl.h"
