// The elementwise kernels over sixteen lanes. Included after one of simd/*.h; KOKUBAN_VARIANT is
// the name of the table to define.
#include "kernels/elementwise/elementwise.h"

namespace {

using kokuban::Activation;
using kokuban::ConstMatrix;
using kokuban::Matrix;

KOKUBAN_INLINE F32 load_some(const float* p, int n) { return n == kLanes ? f_load(p) : f_load_n(p, n); }
KOKUBAN_INLINE void store_some(float* p, F32 x, int n) {
    if (n == kLanes) {
        f_store(p, x);
    } else {
        f_store_n(p, x, n);
    }
}
KOKUBAN_INLINE int lanes_left(int64_t left) { return left < kLanes ? static_cast<int>(left) : kLanes; }

KOKUBAN_INLINE F32 silu(F32 x) { return f_mul(x, f_sigmoid(x)); }

// x / 2 * (1 + tanh u) is x * sigmoid(2 u), which does not cancel where tanh u is near -1.
KOKUBAN_INLINE F32 gelu_tanh(F32 x) {
    const F32 cubic = f_fma(f_mul(f_mul(x, x), x), f_set1(0.044715f), x);
    return f_mul(x, f_sigmoid(f_mul(cubic, f_set1(1.5957691216057308f))));  // 2 sqrt(2 / pi)
}

// NaN stays NaN: f_max gives its second operand then.
KOKUBAN_INLINE F32 relu(F32 x) { return f_max(f_zero(), x); }

template <Activation kKind>
KOKUBAN_INLINE F32 activated(F32 x) {
    if constexpr (kKind == Activation::kSilu) return silu(x);
    if constexpr (kKind == Activation::kGeluTanh) return gelu_tanh(x);
    return relu(x);
}

void add(ConstMatrix a, ConstMatrix b, Matrix out, int64_t cols, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
        const float *pa = a.data + row * a.stride, *pb = b.data + row * b.stride;
        float* po = out.data + row * out.stride;
        for (int64_t i = 0; i < cols; i += kLanes) {
            const int n = lanes_left(cols - i);
            store_some(po + i, f_add(load_some(pa + i, n), load_some(pb + i, n)), n);
        }
    }
}

template <Activation kKind>
KOKUBAN_INLINE void gated_rows(ConstMatrix gate, ConstMatrix up, Matrix out, int64_t cols,
                               int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
        const float *pg = gate.data + row * gate.stride, *pu = up.data + row * up.stride;
        float* po = out.data + row * out.stride;
        for (int64_t i = 0; i < cols; i += kLanes) {
            const int n = lanes_left(cols - i);
            const F32 g = load_some(pg + i, n), u = load_some(pu + i, n);
            store_some(po + i, f_mul(activated<kKind>(g), u), n);
        }
    }
}

void gated(Activation kind, ConstMatrix gate, ConstMatrix up, Matrix out, int64_t cols,
           int64_t begin, int64_t end) {
    switch (kind) {
        case Activation::kSilu: return gated_rows<Activation::kSilu>(gate, up, out, cols, begin, end);
        case Activation::kGeluTanh: return gated_rows<Activation::kGeluTanh>(gate, up, out, cols, begin, end);
        case Activation::kRelu: return gated_rows<Activation::kRelu>(gate, up, out, cols, begin, end);
    }
}

void softcap(Matrix x, float cap, int64_t cols, int64_t begin, int64_t end) {
    const F32 caps = f_set1(cap);
    for (int64_t row = begin; row < end; ++row) {
        float* p = x.data + row * x.stride;
        for (int64_t i = 0; i < cols; i += kLanes) {
            const int n = lanes_left(cols - i);
            store_some(p + i, f_mul(caps, f_tanh(f_div(load_some(p + i, n), caps))), n);
        }
    }
}

void take_rows(ConstMatrix x, const int32_t* rows, Matrix out, int64_t cols, int64_t begin,
               int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
        const int64_t source = rows ? rows[row] : row;
        memcpy(out.data + row * out.stride, x.data + source * x.stride,
               static_cast<size_t>(cols) * sizeof(float));
    }
}

}  // namespace

const kokuban::ElementwiseKernels kokuban::KOKUBAN_VARIANT{add, gated, softcap, take_rows};
