#include "kernels/linear/linear.h"

#include <string.h>

#include <algorithm>

#include "bindings/bindings.h"
#include "bindings/packed.h"
#include "common/thread_pool.h"
#include "kernels/dequantize/dequantize.h"
#include "kernels/linear/pack.h"

namespace kokuban {
namespace {

using Bytes = nb::ndarray<const uint8_t, nb::numpy, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Rows = nb::ndarray<const float, nb::numpy, nb::ndim<2>, nb::device::cpu>;
using Out = nb::ndarray<float, nb::numpy, nb::ndim<2>, nb::device::cpu>;
using Bias = nb::ndarray<const float, nb::numpy, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Runs the items on the pool, or here when there is none.
template <typename Job>
void spread(ThreadPool* pool, int64_t items, Job&& job) {
    if (pool) return pool->run(items, job);
    for (int64_t item = 0; item < items; ++item) job(item, 0);
}

// One 64-byte aligned scratch area for each worker.
AlignedBytes scratch_for(const ThreadPool* pool) {
    return AlignedBytes(kLinearScratchBytes * static_cast<size_t>(pool ? pool->threads() : 1));
}

int64_t row_stride(int64_t rows, int64_t stride, int64_t cols, int64_t inner, const char* name) {
    if (rows > 0 && cols > 1 && inner != 1) throw nb::value_error((std::string(name) + " must have its columns side by side").c_str());
    return rows > 1 ? stride : cols;
}

// Bytes of the file that are packed before the caller is told that they are not needed any more.
constexpr int64_t kSliceBytes = 16 << 20;

std::unique_ptr<PackedWeight> pack(int type, const Bytes& raw, int64_t n, int64_t k, ThreadPool* pool,
                                   const nb::object& consumed) {
    const WeightFormat* format = find_format(static_cast<WeightType>(type));
    if (!format) throw nb::value_error("unknown weight type");
    if (n <= 0 || k <= 0 || k % format->block_elements) throw nb::value_error("n and k do not fit the weight type");
    if (static_cast<int64_t>(raw.size()) != n * row_bytes(*format, k)) throw nb::value_error("raw does not hold n rows of k");
    auto packed = std::make_unique<PackedWeight>(*format, n, k);
    uint8_t* data = packed->data();
    const uint8_t* bytes = raw.data();
    const int64_t tile_bytes = packed->matrix().tile_bytes, tiles = packed->matrix().tiles();
    const int64_t slice = std::max<int64_t>(1, kSliceBytes / (kTileRows * row_bytes(*format, k)));
    for (int64_t begin = 0; begin < tiles; begin += slice) {
        const int64_t end = std::min(tiles, begin + slice);
        {
            nb::gil_scoped_release release;
            spread(pool, end - begin, [&](int64_t item, int) {
                const int64_t tile = begin + item;
                pack_tile(*format, bytes, n, k, tile, data + tile * tile_bytes);
            });
        }
        if (!consumed.is_none()) consumed(std::min(n, end * kTileRows) * row_bytes(*format, k));
    }
    return packed;
}

void unpack(const PackedWeight& weight, const Out& out) {
    const PackedMatrix& w = weight.matrix();
    if (static_cast<int64_t>(out.shape(0)) != w.n || static_cast<int64_t>(out.shape(1)) != w.k) {
        throw nb::value_error("out must be [n, k]");
    }
    const int64_t stride = row_stride(w.n, out.stride(0), w.k, out.stride(1), "out");
    for (int64_t row = 0; row < w.n; ++row) unpack_row(w, row, out.data() + row * stride);
}

// x as the kernels take it for one weight: quantised once where the weight wants that.
class Input {
   public:
    Input(const PackedMatrix& w, const Rows& x, const LinearKernels& kernels, ThreadPool* pool)
        : quantized_(takes_quantized(w) ? quantized_bytes(static_cast<int64_t>(x.shape(0)), w.k) : 0) {
        const int64_t rows = static_cast<int64_t>(x.shape(0));
        const int64_t stride = row_stride(rows, x.stride(0), w.k, x.stride(1), "x");
        auto* groups = reinterpret_cast<QuantizedGroup*>(quantized_.data());
        input_ = {rows, x.data(), stride, {groups}};
        if (!takes_quantized(w)) return;
        spread(pool, rows, [&](int64_t row, int) {
            kernels.quantize_rows(x.data(), stride, rows, w.k, row, row + 1, groups);
        });
    }
    const LinearInput& input() const { return input_; }

   private:
    AlignedBytes quantized_;
    LinearInput input_;
};

void check_product(const PackedMatrix& w, const Rows& x, const Out& out) {
    if (static_cast<int64_t>(x.shape(1)) != w.k) throw nb::value_error("x must have k columns");
    if (out.shape(0) != x.shape(0) || static_cast<int64_t>(out.shape(1)) != w.n) throw nb::value_error("out must be [rows, n]");
}

void run_linear(const PackedWeight& weight, const Rows& x, const Out& out, const std::optional<Bias>& bias, bool add,
                int isa_cap, ThreadPool* pool) {
    const PackedMatrix& w = weight.matrix();
    check_product(w, x, out);
    if (bias && static_cast<int64_t>(bias->size()) != w.n) throw nb::value_error("bias must be [n]");
    const LinearKernels& kernels = linear_kernels(capped_isa(isa_cap));
    const int64_t rows = static_cast<int64_t>(x.shape(0));
    const LinearOutput output = {out.data(), row_stride(rows, out.stride(0), w.n, out.stride(1), "out"),
                                 bias ? bias->data() : nullptr, add};
    nb::gil_scoped_release release;
    const Input input(w, x, kernels, pool);
    AlignedBytes scratch = scratch_for(pool);
    spread(pool, linear_items(w, rows), [&](int64_t item, int worker) {
        kernels.linear(w, input.input(), output, linear_range(w, rows, item),
                       scratch.data() + kLinearScratchBytes * static_cast<size_t>(worker));
    });
}

// The same in one piece: the given tiles and rows only.
void run_linear_range(const PackedWeight& weight, const Rows& x, const Out& out, int isa_cap,
                      const std::tuple<int64_t, int64_t, int64_t, int64_t>& range) {
    const PackedMatrix& w = weight.matrix();
    check_product(w, x, out);
    const int64_t rows = static_cast<int64_t>(x.shape(0));
    const auto [tile_begin, tile_end, row_begin, row_end] = range;
    const bool inside = 0 <= tile_begin && tile_begin <= tile_end && tile_end <= w.tiles() && 0 <= row_begin &&
                        row_begin <= row_end && row_end <= rows && row_begin % kRowBlock == 0;
    if (!inside) throw nb::value_error("the range lies outside the product");
    const LinearKernels& kernels = linear_kernels(capped_isa(isa_cap));
    const Input input(w, x, kernels, nullptr);
    AlignedBytes scratch = scratch_for(nullptr);
    const LinearOutput output = {out.data(), row_stride(rows, out.stride(0), w.n, out.stride(1), "out"), nullptr, false};
    kernels.linear(w, input.input(), output, {tile_begin, tile_end, row_begin, row_end}, scratch.data());
}

// q [rows, k] i8, d [rows, k / 32] f32, and the sums of 16 elements [rows, k / 16] i32.
using Codes = nb::ndarray<int8_t, nb::numpy, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Sums = nb::ndarray<int32_t, nb::numpy, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void quantize(const Rows& x, const Codes& q, const Array<float, 2>& d, const Sums& sums, int isa_cap) {
    const int64_t rows = static_cast<int64_t>(x.shape(0)), k = static_cast<int64_t>(x.shape(1)), groups = k / kGroup;
    const bool fits = k % kGroup == 0 && q.size() == x.size() && static_cast<int64_t>(d.size()) == rows * groups &&
                      static_cast<int64_t>(sums.size()) == 2 * rows * groups;
    if (!fits) throw nb::value_error("x, q, d and sums do not fit each other");
    AlignedBytes memory(quantized_bytes(rows, k));
    auto* records = reinterpret_cast<QuantizedGroup*>(memory.data());
    const int64_t stride = row_stride(rows, x.stride(0), k, x.stride(1), "x");
    linear_kernels(capped_isa(isa_cap)).quantize_rows(x.data(), stride, rows, k, 0, rows, records);
    for (int64_t row = 0; row < rows; ++row) {
        const int64_t block = row / kRowBlock * kRowBlock;
        const int64_t step = rows - block < kRowBlock ? rows - block : kRowBlock;
        for (int64_t g = 0; g < groups; ++g) {
            const QuantizedGroup& group = records[block * groups + g * step + row - block];
            memcpy(q.data() + row * k + g * kGroup, group.q, kGroup);
            d.data()[row * groups + g] = group.d;
            sums.data()[2 * (row * groups + g)] = group.half_sum();
            sums.data()[2 * (row * groups + g) + 1] = group.sum - group.half_sum();
        }
    }
}

void dequantize(int type, const Bytes& raw, int64_t k,
                const nb::ndarray<const int64_t, nb::numpy, nb::ndim<1>, nb::c_contig, nb::device::cpu>& ids,
                float scale, const Out& out) {
    const WeightFormat* format = find_format(static_cast<WeightType>(type));
    if (!format) throw nb::value_error("unknown weight type");
    if (k <= 0 || k % format->block_elements) throw nb::value_error("k does not fit the weight type");
    const int64_t stride = row_bytes(*format, k), rows = static_cast<int64_t>(raw.size()) / stride;
    if (out.shape(0) != ids.size() || static_cast<int64_t>(out.shape(1)) != k) throw nb::value_error("out must be [ids, k]");
    const int64_t out_stride = row_stride(static_cast<int64_t>(ids.size()), out.stride(0), k, out.stride(1), "out");
    for (size_t i = 0; i < ids.size(); ++i) {
        const int64_t id = ids.data()[i];
        if (id < 0 || id >= rows) throw nb::value_error("a row id lies outside the matrix");
        dequantize_row(*format, raw.data() + id * stride, k, scale, out.data() + static_cast<int64_t>(i) * out_stride);
    }
}

}  // namespace

void bind_linear(nb::module_& module) {
    nb::class_<PackedWeight>(module, "PackedMatrix", "A weight matrix in the kernels' layout; owns its memory.")
        .def_prop_ro("type", [](const PackedWeight& w) { return static_cast<int>(w.matrix().type); })
        .def_prop_ro("n", [](const PackedWeight& w) { return w.matrix().n; })
        .def_prop_ro("k", [](const PackedWeight& w) { return w.matrix().k; })
        .def_prop_ro("tiles", [](const PackedWeight& w) { return w.matrix().tiles(); })
        .def_prop_ro("nbytes", [](const PackedWeight& w) { return w.matrix().tiles() * w.matrix().tile_bytes; });
    module.def("pack", &pack, nb::arg("type"), nb::arg("raw"), nb::arg("n"), nb::arg("k"),
               nb::arg("pool").none() = nb::none(), nb::arg("consumed").none() = nb::none());
    module.def("unpack", &unpack, nb::arg("matrix"), nb::arg("out"));
    module.def("linear", &run_linear, nb::arg("matrix"), nb::arg("x"), nb::arg("out"), nb::arg("bias").none() = nb::none(),
               nb::arg("add") = false, nb::arg("isa_cap") = -1, nb::arg("pool").none() = nb::none());
    module.def("linear_range", &run_linear_range, nb::arg("matrix"), nb::arg("x"), nb::arg("out"), nb::arg("isa_cap"),
               nb::arg("range"));
    module.def("linear_items", [](const PackedWeight& weight, int64_t rows) { return linear_items(weight.matrix(), rows); });
    module.def("quantize_rows", &quantize, nb::arg("x"), nb::arg("q"), nb::arg("d"), nb::arg("sums"),
               nb::arg("isa_cap") = -1);
    module.def("dequantize_rows", &dequantize, nb::arg("type"), nb::arg("raw"), nb::arg("k"), nb::arg("ids"),
               nb::arg("scale"), nb::arg("out"));
}

}  // namespace kokuban
