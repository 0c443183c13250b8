#include "simd/avx2.h"

#define KOKUBAN_VARIANT kv_write_avx2
#include "kernels/kv_write/kv_write_impl.h"
