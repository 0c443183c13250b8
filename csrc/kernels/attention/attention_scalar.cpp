#include "simd/scalar.h"

#define KOKUBAN_VARIANT attention_scalar
#define KOKUBAN_ROWS 2
#include "kernels/attention/attention_impl.h"
