#include "simd/scalar.h"

#include "kernels/sampling/passes_generic.h"

const kokuban::SamplingPasses kokuban::kSamplingPassesScalar = kPasses;
