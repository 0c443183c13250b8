#include "simd/avx2.h"

#define KOKUBAN_VARIANT attention_avx2
#define KOKUBAN_ROWS 6  // 12 of 16 registers; the others hold K or V and a query
#include "kernels/attention/attention_impl.h"
