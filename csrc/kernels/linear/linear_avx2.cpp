#include "kernels/linear/dot_avx2.h"
#include "kernels/linear/linear_impl.h"

namespace kokuban {

extern const LinearKernels linear_kernels_avx2;
constinit const LinearKernels linear_kernels_avx2 = {quantize_rows, linear};

}  // namespace kokuban
