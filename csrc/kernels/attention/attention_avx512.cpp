#include "simd/avx512.h"

#define KOKUBAN_VARIANT attention_avx512
#define KOKUBAN_ROWS 8  // covers the latency of a fused multiply-add; divides common head counts
#include "kernels/attention/attention_impl.h"
