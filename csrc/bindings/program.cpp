#include "program/program.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <tuple>

#include "bindings/bindings.h"
#include "bindings/packed.h"

namespace kokuban {
namespace {

using ColumnsArg = std::tuple<int, int64_t, int64_t>;  // buffer, first column, number of columns

using StageTime = std::tuple<bool, size_t, size_t, bool, int64_t>;

Columns columns(const ColumnsArg& arg) {
    return {std::get<0>(arg), std::get<1>(arg), std::get<2>(arg)};
}

// A NativeProgram with what its operations point to.
class BoundProgram {
   public:
    BoundProgram(nb::object pool, int isa_cap, int64_t block_size, int64_t num_kv_heads, int64_t head_dim,
                 int64_t layers_per_group, int dtype, Array<uint8_t, 1> kv_pool, int64_t tile_rows)
        : layout_(make_kv_layout(block_size, num_kv_heads, head_dim, layers_per_group,
                                 static_cast<KvDtype>(dtype))),
          program_(nb::cast<ThreadPool&>(pool), capped_isa(isa_cap), layout_, kv_pool.data(), tile_rows),
          num_blocks_(static_cast<int64_t>(kv_pool.size()) / layout_.block_bytes) {
        keep_.push_back(pool);
        keep_.push_back(nb::cast(kv_pool));
    }

    int buffer(int64_t cols) {
        buffer_cols_.push_back(cols);
        return program_.add_buffer(cols);
    }

    // Operations that follow belong to the head, which reads the sampled rows of `from` in `to`.
    void take_rows(ColumnsArg from, ColumnsArg to) {
        in_head_ = true;
        program_.take_rows(columns(from), columns(to));
    }

    void embed(ColumnsArg out, Array<const uint8_t, 1> rows, int type, int64_t row_bytes, float scale) {
        const WeightFormat* format = find_format(static_cast<WeightType>(type));
        if (format == nullptr) throw std::invalid_argument("unknown weight type");
        Operation op{.code = OpCode::kEmbed, .out = columns(out)};
        op.bytes = rows.data();
        op.format = format;
        op.row_bytes = row_bytes;
        op.scale = scale;
        num_embeddings_ = static_cast<int64_t>(rows.size()) / row_bytes;
        keep_.push_back(nb::cast(rows));
        add_operation(std::move(op));
    }

    void rms_norm(ColumnsArg x, Array<const float, 1> weight, float eps, ColumnsArg out) {
        Operation op{.code = OpCode::kRmsNorm, .a = columns(x), .out = columns(out)};
        op.weight = kept(weight);
        op.eps = eps;
        op.dim = static_cast<int64_t>(weight.size());
        op.heads = op.a.cols / op.dim;
        add_operation(std::move(op));
    }

    void linear(ColumnsArg x, const std::vector<nb::object>& weights,
                const std::vector<nb::object>& biases, ColumnsArg out) {
        Operation op{.code = OpCode::kLinear, .a = columns(x), .out = columns(out)};
        int64_t offset = op.out.offset;
        for (size_t i = 0; i < weights.size(); ++i) {
            const PackedMatrix& weight = nb::cast<const PackedWeight&>(weights[i]).matrix();
            const float* bias = nullptr;
            if (!biases[i].is_none()) bias = kept(nb::cast<Array<const float, 1>>(biases[i]));
            op.parts.push_back({weight, bias, offset - op.out.offset});
            offset += weight.n;
            keep_.push_back(weights[i]);
        }
        add_operation(std::move(op));
    }

    void rope(ColumnsArg x, int64_t heads, int64_t head_dim, Array<const float, 3> table, bool interleaved) {
        Operation op{.code = OpCode::kRope, .a = columns(x), .out = columns(x)};
        op.heads = heads;
        op.dim = head_dim;
        op.rope = {table.data(), 2 * static_cast<int64_t>(table.shape(2)), interleaved};
        max_positions_ = std::min(max_positions_, static_cast<int64_t>(table.shape(0)));
        keep_.push_back(nb::cast(table));
        add_operation(std::move(op));
    }

    void kv_write(ColumnsArg k, ColumnsArg v, int64_t group, int64_t layer,
                  const std::optional<Array<const float, 1>>& k_offset) {
        Operation op{.code = OpCode::kKvWrite, .a = columns(k), .b = columns(v)};
        if (k_offset) op.weight = kept(*k_offset);
        op.group = group;
        op.layer = layer;
        add_operation(std::move(op));
    }

    void attention(ColumnsArg q, ColumnsArg out, int64_t group, int64_t layer, int64_t heads, float scale,
                   int64_t window, float softcap) {
        Operation op{.code = OpCode::kAttention, .a = columns(q), .out = columns(out)};
        op.group = group;
        op.layer = layer;
        op.heads = heads;
        op.scale = scale;
        op.window = window;
        op.softcap = softcap;
        add_operation(std::move(op));
    }

    void add(ColumnsArg a, ColumnsArg b, ColumnsArg out) {
        add_operation({.code = OpCode::kAdd, .a = columns(a), .b = columns(b), .out = columns(out)});
    }

    void gated(int activation, ColumnsArg gate, ColumnsArg up, ColumnsArg out) {
        Operation op{.code = OpCode::kGated, .a = columns(gate), .b = columns(up), .out = columns(out)};
        op.activation = static_cast<Activation>(activation);
        add_operation(std::move(op));
    }

    void softcap(ColumnsArg x, float cap) {
        Operation op{.code = OpCode::kSoftcap, .a = columns(x), .out = columns(x)};
        op.softcap = cap;
        add_operation(std::move(op));
    }

    void finish(int logits) {
        program_.finish(logits);
        logit_cols_ = buffer_cols_[static_cast<size_t>(logits)];
    }

    void run_body(Array<const int32_t, 1> token_ids, Array<const int32_t, 1> positions,
                  Array<const int32_t, 1> query_start, Array<const int64_t, 2> slots,
                  Array<const int32_t, 3> block_tables, Array<const int32_t, 1> sampled_rows) {
        const Step step{static_cast<int64_t>(token_ids.size()),
                        static_cast<int64_t>(block_tables.shape(1)),
                        static_cast<int64_t>(block_tables.shape(2)),
                        token_ids.data(),
                        positions.data(),
                        query_start.data(),
                        slots.data(),
                        block_tables.data(),
                        static_cast<int64_t>(sampled_rows.size()),
                        sampled_rows.data()};
        check(step, slots, positions, query_start);
        num_sampled_ = step.num_sampled;
        nb::gil_scoped_release release;
        program_.run_body(step);
    }

    void run_head(int64_t begin, int64_t end, Array<float, 2> logits) {
        check_rows(begin, end, logits, logit_cols_);
        nb::gil_scoped_release release;
        program_.run_head(begin, end, logits.data(), static_cast<int64_t>(logits.shape(1)));
    }

    void run_head_until(ColumnsArg value, int64_t begin, int64_t end, Array<float, 2> out) {
        const Columns wanted = columns(value);
        check_rows(begin, end, out, wanted.cols);
        nb::gil_scoped_release release;
        program_.run_head_until(wanted, begin, end, out.data(), static_cast<int64_t>(out.shape(1)));
    }

    void time_stages(bool on) { program_.time_stages(on); }

    // (in the head, first operation, operation behind the last, quantises its end, nanoseconds)
    std::vector<StageTime> stage_times() const {
        std::vector<StageTime> times;
        for (const bool head : {false, true}) {
            for (const auto& stage : head ? program_.head_stages() : program_.body_stages()) {
                times.emplace_back(head, stage.begin, stage.end, stage.quantized.cols > 0, stage.nanoseconds);
            }
        }
        return times;
    }

   private:
    void add_operation(Operation op) {
        if (in_head_) {
            program_.add_head(std::move(op));
        } else {
            program_.add_body(std::move(op));
        }
    }

    // Keeps an array alive as long as the program, and gives its address.
    const float* kept(const Array<const float, 1>& array) {
        keep_.push_back(nb::cast(array));
        return array.data();
    }

    // Whether the rows are there, and the room for what the head finds for them.
    void check_rows(int64_t begin, int64_t end, const Array<float, 2>& out, int64_t cols) const {
        if (begin < 0 || begin > end || end > num_sampled_) throw std::out_of_range("rows that the step did not sample");
        if (end - begin > program_.tile_rows()) throw std::out_of_range("more rows than a tile has");
        if (static_cast<int64_t>(out.shape(0)) < end - begin || static_cast<int64_t>(out.shape(1)) < cols) {
            throw std::invalid_argument("the output of the head has too few rows or columns");
        }
    }

    // What would otherwise read or write outside of memory. Cheap beside a step.
    void check(const Step& step, const Array<const int64_t, 2>& slots, const Array<const int32_t, 1>& positions,
               const Array<const int32_t, 1>& query_start) const {
        if (step.num_tokens < 1 || static_cast<int64_t>(positions.size()) != step.num_tokens ||
            static_cast<int64_t>(slots.shape(1)) != step.num_tokens ||
            static_cast<int64_t>(query_start.size()) != step.num_chunks + 1) {
            throw std::invalid_argument("the arrays of a step are empty or disagree on T or R");
        }
        if (step.query_start[0] != 0 || step.query_start[step.num_chunks] != step.num_tokens ||
            !std::is_sorted(step.query_start, step.query_start + step.num_chunks + 1)) {
            throw std::invalid_argument("query_start does not go up from 0 to T");
        }
        for (int64_t i = 0; i < step.num_sampled; ++i) {
            const bool ascends = i == 0 || step.sampled_rows[i] > step.sampled_rows[i - 1];
            if (step.sampled_rows[i] < 0 || step.sampled_rows[i] >= step.num_tokens || !ascends) {
                throw std::out_of_range("sampled rows do not ascend within the step");
            }
        }
        const int64_t num_slots = num_blocks_ * layout_.block_size;
        for (int64_t t = 0; t < step.num_tokens; ++t) {
            if (step.token_ids[t] < 0 || step.token_ids[t] >= num_embeddings_) throw std::out_of_range("token id outside the embedding");
            if (step.positions[t] < 0 || step.positions[t] >= max_positions_) throw std::out_of_range("position outside the rotary table");
        }
        for (size_t i = 0; i < slots.size(); ++i) {
            if (step.slots[i] < 0 || step.slots[i] >= num_slots) throw std::out_of_range("slot outside the KV pool");
        }
    }

    std::vector<nb::object> keep_;
    KvLayout layout_;
    NativeProgram program_;
    int64_t num_blocks_;
    int64_t num_embeddings_ = 0;
    int64_t num_sampled_ = 0;
    bool in_head_ = false;
    int64_t logit_cols_ = 0;
    std::vector<int64_t> buffer_cols_;
    int64_t max_positions_ = INT32_MAX;
};

}  // namespace

void bind_program(nb::module_& module) {
    nb::class_<BoundProgram>(module, "Program", "A Program lowered to native calls; see runner.lower.")
        .def(nb::init<nb::object, int, int64_t, int64_t, int64_t, int64_t, int, Array<uint8_t, 1>, int64_t>(),
             nb::arg("pool"), nb::arg("isa"), nb::arg("block_size"), nb::arg("num_kv_heads"),
             nb::arg("head_dim"), nb::arg("layers_per_group"), nb::arg("kv_dtype"), nb::arg("kv_pool"),
             nb::arg("tile_rows"))
        .def("buffer", &BoundProgram::buffer, nb::arg("cols"))
        .def("take_rows", &BoundProgram::take_rows)
        .def("embed", &BoundProgram::embed)
        .def("rms_norm", &BoundProgram::rms_norm)
        .def("linear", &BoundProgram::linear, nb::arg("x"), nb::arg("weights"),
             nb::arg("biases").none(), nb::arg("out"))
        .def("rope", &BoundProgram::rope)
        .def("kv_write", &BoundProgram::kv_write, nb::arg("k"), nb::arg("v"), nb::arg("group"),
             nb::arg("layer"), nb::arg("k_offset").none())
        .def("attention", &BoundProgram::attention)
        .def("add", &BoundProgram::add)
        .def("gated", &BoundProgram::gated)
        .def("softcap", &BoundProgram::softcap)
        .def("finish", &BoundProgram::finish)
        .def("run_body", &BoundProgram::run_body)
        .def("run_head", &BoundProgram::run_head)
        .def("run_head_until", &BoundProgram::run_head_until)
        .def("time_stages", &BoundProgram::time_stages)
        .def("stage_times", &BoundProgram::stage_times);
}

}  // namespace kokuban
