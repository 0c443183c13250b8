#include "bindings/bindings.h"
#include "bindings/matrices.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/lanes/lanes.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/rope/rope.h"

namespace kokuban {
namespace {

using Unlocked = nb::call_guard<nb::gil_scoped_release>;

void add(const InMatrix& a, const InMatrix& b, const OutMatrix& out, int64_t begin, int64_t end, int cap) {
    elementwise_kernels(capped_isa(cap)).add(matrix(a), matrix(b), matrix(out), columns(out), begin, end);
}

void gated(int kind, const InMatrix& gate, const InMatrix& up, const OutMatrix& out, int64_t begin,
           int64_t end, int cap) {
    elementwise_kernels(capped_isa(cap))
        .gated(static_cast<Activation>(kind), matrix(gate), matrix(up), matrix(out), columns(out), begin, end);
}

void softcap(const OutMatrix& x, float limit, int64_t begin, int64_t end, int cap) {
    elementwise_kernels(capped_isa(cap)).softcap(matrix(x), limit, columns(x), begin, end);
}

void take_rows(const InMatrix& x, const Array<const int32_t, 1>& rows, const OutMatrix& out,
               int64_t begin, int64_t end, int cap) {
    elementwise_kernels(capped_isa(cap)).take_rows(matrix(x), rows.data(), matrix(out), columns(out), begin, end);
}

void rms_norm(const InMatrix& x, const Array<const float, 1>& weight, float eps, const OutMatrix& out,
              int64_t begin, int64_t end, int cap) {
    const auto dim = static_cast<int64_t>(weight.shape(0));
    rms_norm_kernels(capped_isa(cap))
        .rms_norm(matrix(x), weight.data(), eps, dim, columns(out) / dim, matrix(out), begin, end);
}

void rope(const OutMatrix& x, int64_t num_heads, const Array<const float, 3>& table, bool interleaved,
          const Array<const int32_t, 1>& positions, int64_t begin, int64_t end, int cap) {
    const RopeTable cos_sin{table.data(), 2 * static_cast<int64_t>(table.shape(2)), interleaved};
    rope_kernels(capped_isa(cap))
        .rope(matrix(x), num_heads, columns(x) / num_heads, cos_sin, positions.data(), begin, end);
}

// The lane operation at this place of the table, for the tests of csrc/simd.
void lanes(int which, const Array<const float, 1>& x, const Array<float, 1>& out, int cap) {
    const LaneKernels& k = lane_kernels(capped_isa(cap));
    void (*const all[])(const float*, float*, int64_t) = {
        k.exp,          k.tanh,        k.sigmoid,     k.reduce_add, k.reduce_max,
        k.through_bf16, k.through_f16, k.through_i32, k.first_five, k.exchange_pairs, k.exp2_below,
    };
    all[which](x.data(), out.data(), static_cast<int64_t>(x.shape(0)));
}

}  // namespace

void bind_elementwise(nb::module_& module) {
    module.def("add", &add, Unlocked());
    module.def("gated", &gated, Unlocked());
    module.def("softcap", &softcap, Unlocked());
    module.def("take_rows", &take_rows, Unlocked());
    module.def("rms_norm", &rms_norm, Unlocked());
    module.def("rope", &rope, Unlocked());
    module.def("lanes", &lanes, Unlocked());
}

}  // namespace kokuban
