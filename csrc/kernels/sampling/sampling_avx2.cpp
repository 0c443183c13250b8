#include "simd/avx2.h"

#include "kernels/sampling/passes_generic.h"

const kokuban::SamplingPasses kokuban::kSamplingPassesAvx2 = kPasses;
