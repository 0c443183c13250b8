#include "simd/avx512.h"

#include "kernels/sampling/passes_generic.h"

const kokuban::SamplingPasses kokuban::kSamplingPassesAvx512 = kPasses;
