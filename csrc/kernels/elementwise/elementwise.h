// Operations in which each element of the output depends on one element of each input.
//
//   add        out = a + b
//   gated      out = activation(gate) * up
//                silu       x / (1 + e^-x)
//                gelu_tanh  x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))
//                relu       max(x, 0)
//   softcap    x = cap * tanh(x / cap), in place; cap > 0
//   take_rows  out[r] = x[rows[r]]; with rows = null a plain copy
//
// Matrices have `cols` columns, any number above 0; rows [begin, end) of the output are computed.
// out may be an input itself (not for take_rows), but must not overlap one otherwise. A value that
// is not finite changes its own element only. Within 3e-7 of the exact result, relative to
// max(|result|, |up|) (tests/kernels/test_elementwise.py). Same bits on every instruction set.
#pragma once

#include "common/isa.h"
#include "common/matrix.h"

namespace kokuban {

enum class Activation : int { kSilu = 0, kGeluTanh = 1, kRelu = 2 };

struct ElementwiseKernels {
    void (*add)(ConstMatrix a, ConstMatrix b, Matrix out, int64_t cols, int64_t begin, int64_t end);
    void (*gated)(Activation kind, ConstMatrix gate, ConstMatrix up, Matrix out, int64_t cols,
                  int64_t begin, int64_t end);
    void (*softcap)(Matrix x, float cap, int64_t cols, int64_t begin, int64_t end);
    void (*take_rows)(ConstMatrix x, const int32_t* rows, Matrix out, int64_t cols, int64_t begin,
                      int64_t end);
};

extern const ElementwiseKernels elementwise_scalar, elementwise_avx2, elementwise_avx512;

const ElementwiseKernels& elementwise_kernels(Isa isa);

}  // namespace kokuban
