#include "kernels/lanes/lanes.h"

#include "common/variants.h"

namespace kokuban {

const LaneKernels& lane_kernels(Isa isa) { return choose(isa, lanes_scalar, lanes_avx2, lanes_avx512); }

}  // namespace kokuban
