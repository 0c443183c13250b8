// Float32 matrices whose rows may lie apart, as NumPy arrays. The Python faces have checked shapes
// and that columns are contiguous.
#pragma once

#include "bindings/bindings.h"
#include "common/matrix.h"

namespace kokuban {

using InMatrix = nb::ndarray<const float, nb::numpy, nb::ndim<2>, nb::device::cpu>;
using OutMatrix = nb::ndarray<float, nb::numpy, nb::ndim<2>, nb::device::cpu>;

inline ConstMatrix matrix(const InMatrix& x) { return {x.data(), x.stride(0)}; }
inline Matrix matrix(const OutMatrix& x) { return {x.data(), x.stride(0)}; }
inline int64_t columns(const OutMatrix& x) { return static_cast<int64_t>(x.shape(1)); }

}  // namespace kokuban
