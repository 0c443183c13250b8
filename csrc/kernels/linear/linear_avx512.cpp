#include "kernels/linear/dot_avx512.h"
#include "kernels/linear/linear_impl.h"

namespace kokuban {

extern const LinearKernels linear_kernels_avx512;
constinit const LinearKernels linear_kernels_avx512 = {quantize_rows, linear};

}  // namespace kokuban
