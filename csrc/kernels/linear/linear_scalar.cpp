#include "kernels/linear/dot_scalar.h"
#include "kernels/linear/linear_impl.h"

namespace kokuban {

extern const LinearKernels linear_kernels_scalar;
constinit const LinearKernels linear_kernels_scalar = {quantize_rows, linear};

}  // namespace kokuban
