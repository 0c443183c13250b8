#include "program/program.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "common/huge_memory.h"

namespace kokuban {
namespace {

// Cost of the rows (Stage::row_cost) that one worker handles before a second one is worth its
// wake-up: some 3 µs.
constexpr int64_t kGrain = 16 * 1024;

constexpr int64_t kCacheLineFloats = 16;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t round_up(int64_t a, int64_t step) { return ceil_div(a, step) * step; }

// Floats from row to row: whole cache lines, and never a multiple of 2 KiB, at which the rows of a
// product's output would all compete for the same few lines of a cache.
int64_t row_stride(int64_t cols) {
    const int64_t stride = round_up(cols, kCacheLineFloats);
    return stride % 512 ? stride : stride + kCacheLineFloats;
}

int64_t now_ns() {
    const auto time = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
}

}  // namespace

NativeProgram::NativeProgram(ThreadPool& pool, Isa isa, const KvLayout& layout, uint8_t* kv_pool,
                             int64_t tile_rows)
    : pool_(pool),
      layout_(layout),
      kv_pool_(kv_pool),
      tile_rows_(tile_rows),
      linear_kernels_(linear_kernels(isa)),
      attention_kernels_(attention_kernels(isa)),
      elementwise_(elementwise_kernels(isa)),
      rms_norm_(rms_norm_kernels(isa)),
      rope_(rope_kernels(isa)),
      kv_write_(kv_write_kernels(isa)) {}

int NativeProgram::add_buffer(int64_t cols) {
    buffers_.push_back({cols, row_stride(cols)});
    return static_cast<int>(buffers_.size()) - 1;
}

void NativeProgram::finish(int logits) {
    logits_ = logits;
    body_stages_ = make_stages(body_);
    head_stages_ = make_stages(head_);
    buffers_[static_cast<size_t>(logits)].external = true;
    for (auto& taken : taken_) {
        Buffer& to = buffers_[static_cast<size_t>(taken.to.buffer)];
        to.external = true;
        taken.stride = to.stride;
    }
    allocate();
}

// One mapping for all that a tile needs, so that small buffers share huge pages.
void NativeProgram::allocate() {
    size_t quantized = 0, scratch = 0;
    for (const auto* ops : {&body_, &head_}) {
        for (const auto& op : *ops) {
            if (op.code == OpCode::kLinear) quantized = std::max(quantized, quantized_bytes(tile_rows_, op.a.cols));
            if (op.code != OpCode::kAttention) continue;
            scratch = std::max(scratch, sizeof(float) * static_cast<size_t>(attention_scratch_floats(layout_, op.heads)));
        }
    }
    // Everything begins at a cache line. Called twice: to add up, then to hand out.
    const auto lay_out = [&](auto&& cut) {
        quantized_ = reinterpret_cast<QuantizedGroup*>(cut(quantized));
        for (auto& memory : linear_scratch_) memory = cut(kLinearScratchBytes);
        for (auto& memory : attention_scratch_) memory = reinterpret_cast<float*>(cut(scratch));
        for (auto& buffer : buffers_) {
            if (buffer.external) continue;
            buffer.data = reinterpret_cast<float*>(cut(sizeof(float) * static_cast<size_t>(buffer.stride * tile_rows_)));
        }
    };
    linear_scratch_.resize(static_cast<size_t>(pool_.threads()));
    attention_scratch_.resize(static_cast<size_t>(pool_.threads()));
    size_t used = 0;
    const auto cut = [&](size_t bytes) {
        const size_t begin = std::exchange(used, used + (bytes + 63) / 64 * 64);
        return memory_ ? memory_.get() + begin : nullptr;
    };
    lay_out(cut);
    memory_ = map_huge(std::exchange(used, 0));
    lay_out(cut);
}

Matrix NativeProgram::at(const Columns& columns) const {
    const Buffer& buffer = buffers_[static_cast<size_t>(columns.buffer)];
    return {buffer.data + columns.offset, buffer.stride};
}

ConstMatrix NativeProgram::read(const Columns& columns) const {
    const Matrix matrix = at(columns);
    return {matrix.data, matrix.stride};
}

void NativeProgram::run_body(const Step& step) {
    for (auto& taken : taken_) {
        const auto floats = static_cast<size_t>(step.num_sampled * taken.stride);
        if (taken.memory.size() < floats) taken.memory.resize(floats);
    }
    // Tiles of about equal size, in whole row blocks of the linear kernels.
    const int64_t tiles = ceil_div(step.num_tokens, tile_rows_);
    const int64_t rows = std::min(tile_rows_, round_up(ceil_div(step.num_tokens, tiles), kRowBlock));
    const int32_t* sampled = step.sampled_rows;
    const int32_t* const sampled_end = sampled + step.num_sampled;
    for (int64_t begin = 0; begin < step.num_tokens; begin += rows) {
        Tile tile{&step, begin, std::min(rows, step.num_tokens - begin), 0, 0};
        cut_requests(step, tile);
        run_stages(body_, body_stages_, tile);
        const int32_t* next = std::lower_bound(sampled, sampled_end, static_cast<int32_t>(begin + tile.rows));
        take(step, tile, sampled - step.sampled_rows, next - sampled);
        sampled = next;
    }
}

// Collects `count` sampled rows from the `first` on, which are in the tile.
void NativeProgram::take(const Step& step, const Tile& tile, int64_t first, int64_t count) {
    for (auto& taken : taken_) {
        const ConstMatrix from = read(taken.from);
        for (int64_t i = first; i < first + count; ++i) {
            std::memcpy(taken.memory.data() + i * taken.stride, from.data + (step.sampled_rows[i] - tile.begin) * from.stride,
                        static_cast<size_t>(taken.from.cols) * sizeof(float));
        }
    }
}

// Lets the head read the sampled rows from `begin` on.
void NativeProgram::give_taken(int64_t begin) {
    for (auto& taken : taken_) {
        buffers_[static_cast<size_t>(taken.to.buffer)].data = taken.memory.data() + begin * taken.stride;
    }
}

void NativeProgram::run_head(int64_t begin, int64_t end, float* logits, int64_t stride) {
    give_taken(begin);
    Buffer& out = buffers_[static_cast<size_t>(logits_)];
    out.data = logits;
    out.stride = stride;
    run_stages(head_, head_stages_, {nullptr, begin, end - begin, 0, 0});
}

void NativeProgram::run_head_until(Columns value, int64_t begin, int64_t end, float* out, int64_t stride) {
    give_taken(begin);
    const auto writes = [&](const Stage& stage) {
        const auto first = head_.begin();
        return std::any_of(first + static_cast<std::ptrdiff_t>(stage.begin), first + static_cast<std::ptrdiff_t>(stage.end),
                           [&](const Operation& op) { return op.out.buffer == value.buffer; });
    };
    // None writes what the head takes as it is.
    const auto last = std::find_if(head_stages_.rbegin(), head_stages_.rend(), writes);
    const Tile tile{nullptr, begin, end - begin, 0, 0};
    for (auto stage = head_stages_.begin(); stage != last.base(); ++stage) run_stage(head_, *stage, tile);
    const ConstMatrix from = read(value);
    for (int64_t row = 0; row < tile.rows; ++row) {
        std::memcpy(out + row * stride, from.data + row * from.stride, static_cast<size_t>(value.cols) * sizeof(float));
    }
}

void NativeProgram::time_stages(bool on) {
    timed_ = on;
    for (auto* stages : {&body_stages_, &head_stages_}) {
        for (auto& stage : *stages) stage.nanoseconds = 0;
    }
}

void NativeProgram::cut_requests(const Step& step, Tile& tile) {
    const int32_t* starts = step.query_start;
    const int64_t end = tile.begin + tile.rows;
    const int32_t* last = starts + step.num_chunks + 1;
    tile.first_chunk = std::upper_bound(starts, last, static_cast<int32_t>(tile.begin)) - starts - 1;
    query_start_.clear();
    context_lens_.clear();
    int64_t chunk = tile.first_chunk;
    for (; chunk < step.num_chunks && starts[chunk] < end; ++chunk) {
        const int64_t first = std::max<int64_t>(starts[chunk], tile.begin);
        const int64_t stop = std::min<int64_t>(starts[chunk + 1], end);
        query_start_.push_back(static_cast<int32_t>(first - tile.begin));
        context_lens_.push_back(step.positions[stop - 1] + 1);
    }
    query_start_.push_back(static_cast<int32_t>(tile.rows));
    tile.num_chunks = chunk - tile.first_chunk;
    for (auto& plan : plans_) plan.valid = false;
}

void NativeProgram::run_stages(const std::vector<Operation>& ops, std::vector<Stage>& stages, const Tile& tile) {
    if (!timed_) {
        for (const auto& stage : stages) run_stage(ops, stage, tile);
        return;
    }
    int64_t begin = now_ns();
    for (auto& stage : stages) {
        run_stage(ops, stage, tile);
        const int64_t end = now_ns();
        stage.nanoseconds += end - std::exchange(begin, end);
    }
}

void NativeProgram::run_stage(const std::vector<Operation>& ops, const Stage& stage, const Tile& tile) {
    if (stage.by_rows) return run_rows(ops, stage, tile);
    const Operation& op = ops[stage.begin];
    return op.code == OpCode::kLinear ? linear(op, tile.rows) : attention(op, tile);
}

void NativeProgram::run_rows(const std::vector<Operation>& ops, const Stage& stage, const Tile& tile) {
    const int64_t pieces = std::clamp<int64_t>(tile.rows * stage.row_cost / kGrain, 1, tile.rows);
    const int64_t size = ceil_div(tile.rows, pieces);
    pool_.run(ceil_div(tile.rows, size), [&](int64_t piece, int) {
        const int64_t stop = std::min(tile.rows, (piece + 1) * size);
        for (int64_t begin = piece * size; begin < stop; begin += stage.block_rows) {
            const int64_t end = std::min(stop, begin + stage.block_rows);
            for (size_t i = stage.begin; i < stage.end; ++i) row_op(ops[i], tile, begin, end);
            if (stage.quantized.cols == 0) continue;
            const ConstMatrix x = read(stage.quantized);
            linear_kernels_.quantize_rows(x.data, x.stride, tile.rows, stage.quantized.cols, begin, end, quantized_);
        }
    });
}

// An operation on rows begin … end - 1 of the tile.
void NativeProgram::row_op(const Operation& op, const Tile& tile, int64_t begin, int64_t end) {
    switch (op.code) {
        case OpCode::kEmbed:
            return embed(op, tile.step->token_ids + tile.begin, begin, end);
        case OpCode::kRmsNorm:
            return rms_norm_.rms_norm(read(op.a), op.weight, op.eps, op.dim, op.heads, at(op.out), begin, end);
        case OpCode::kRope:
            return rope_.rope(at(op.a), op.heads, op.dim, op.rope, tile.step->positions + tile.begin, begin, end);
        case OpCode::kKvWrite: {
            const int64_t* slots = tile.step->slots + op.group * tile.step->num_tokens + tile.begin;
            return kv_write_.kv_write(layout_, kv_pool_, op.layer, read(op.a), read(op.b), op.weight, slots, begin,
                                      end);
        }
        case OpCode::kAdd:
            return elementwise_.add(read(op.a), read(op.b), at(op.out), op.out.cols, begin, end);
        case OpCode::kGated:
            return elementwise_.gated(op.activation, read(op.a), read(op.b), at(op.out), op.out.cols, begin, end);
        case OpCode::kSoftcap:
            return elementwise_.softcap(at(op.a), op.softcap, op.a.cols, begin, end);
        case OpCode::kLinear:
        case OpCode::kAttention:
            return;  // stages of their own
    }
}

void NativeProgram::embed(const Operation& op, const int32_t* token_ids, int64_t begin, int64_t end) {
    const Matrix out = at(op.out);
    for (int64_t row = begin; row < end; ++row) {
        dequantize_row(*op.format, op.bytes + token_ids[row] * op.row_bytes, op.out.cols, op.scale,
                       out.data + row * out.stride);
    }
}

// The stage before has quantised x, if a weight takes it so.
void NativeProgram::linear(const Operation& op, int64_t rows) {
    const ConstMatrix x = read(op.a);
    const LinearInput input{rows, x.data, x.stride, {quantized_}};
    int64_t items = 0;
    for (const auto& part : op.parts) items += linear_items(part.weight, rows);
    const Matrix out = at(op.out);
    pool_.run(items, [&](int64_t item, int worker) {
        auto part = op.parts.begin();
        for (int64_t own; item >= (own = linear_items(part->weight, rows)); ++part) item -= own;
        const LinearOutput output{out.data + part->offset, out.stride, part->bias, false};
        linear_kernels_.linear(part->weight, input, output, linear_range(part->weight, rows, item),
                               linear_scratch_[static_cast<size_t>(worker)]);
    });
}

AttentionBatch NativeProgram::batch_of(const Operation& op, const Tile& tile) const {
    const Step& step = *tile.step;
    const int32_t* tables = step.block_tables + (op.group * step.num_chunks + tile.first_chunk) * step.num_blocks;
    return {tile.num_chunks, query_start_.data(), context_lens_.data(), tables, step.num_blocks};
}

const AttentionPlan& NativeProgram::plan_for(const Operation& op, const AttentionBatch& batch) {
    auto entry = std::find_if(plans_.begin(), plans_.end(), [&](const auto& known) {
        return known.group == op.group && known.window == op.window && known.heads == op.heads;
    });
    if (entry == plans_.end()) entry = plans_.insert(entry, {op.group, op.window, op.heads, false, {}});
    if (!entry->valid) entry->plan.build(batch, layout_, op.heads, op.window, pool_.threads());
    entry->valid = true;
    return entry->plan;
}

void NativeProgram::attention(const Operation& op, const Tile& tile) {
    const AttentionBatch batch = batch_of(op, tile);
    const AttentionPlan& plan = plan_for(op, batch);
    if (partials_.size() < static_cast<size_t>(plan.partial_floats())) {
        partials_.resize(static_cast<size_t>(plan.partial_floats()));
    }
    const AttentionArgs args{layout_, kv_pool_, op.layer, batch, read(op.a), at(op.out),
                             op.heads, op.scale, op.softcap, op.window, partials_.data(),
                             plan.chunks().data(), plan.members().data()};
    pool_.run(static_cast<int64_t>(plan.items().size()), [&](int64_t item, int worker) {
        attention_kernels_.attend(args, plan.items()[static_cast<size_t>(item)],
                                  attention_scratch_[static_cast<size_t>(worker)]);
    });
    if (plan.merges().empty()) return;
    pool_.run(static_cast<int64_t>(plan.merges().size()), [&](int64_t item, int worker) {
        attention_kernels_.merge(args, plan.merges()[static_cast<size_t>(item)],
                                 attention_scratch_[static_cast<size_t>(worker)]);
    });
}

}  // namespace kokuban
