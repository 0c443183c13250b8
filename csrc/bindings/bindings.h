// What the bindings share. They convert and check; arithmetic is the kernels' business.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

namespace kokuban {

namespace nb = nanobind;

template <typename T, int kDims>
using Array = nb::ndarray<T, nb::numpy, nb::ndim<kDims>, nb::c_contig, nb::device::cpu>;

// Each adds one area to the module; the file of the same name defines it.
void bind_common(nb::module_& module);
void bind_linear(nb::module_& module);
void bind_attention(nb::module_& module);
void bind_elementwise(nb::module_& module);
void bind_sampling(nb::module_& module);
void bind_program(nb::module_& module);
void bind_peak(nb::module_& module);
void bind_merges(nb::module_& module);
void bind_strings(nb::module_& module);

}  // namespace kokuban
