#include "program/program.h"

#include <algorithm>
#include <cstring>

namespace kokuban {
namespace {

// Elements that one worker handles before a second one is worth its wake-up (about 5 µs).
constexpr int64_t kGrain = 16 * 1024;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

NativeProgram::NativeProgram(ThreadPool& pool, Isa isa, const KvLayout& layout, uint8_t* kv_pool,
                             int64_t tile_rows)
    : pool_(pool),
      isa_(isa),
      layout_(layout),
      kv_pool_(kv_pool),
      tile_rows_(tile_rows),
      linear_kernels_(linear_kernels(isa)),
      attention_kernels_(attention_kernels(isa)),
      elementwise_(elementwise_kernels(isa)),
      rms_norm_(rms_norm_kernels(isa)),
      rope_(rope_kernels(isa)),
      kv_write_(kv_write_kernels(isa)) {
    const int threads = pool_.threads();
    linear_memory_ = std::make_unique<uint8_t[]>(kLinearScratchBytes * static_cast<size_t>(threads) + 64);
    const auto base = (reinterpret_cast<uintptr_t>(linear_memory_.get()) + 63) & ~uintptr_t{63};
    for (int i = 0; i < threads; ++i) {
        linear_scratch_.push_back(
            reinterpret_cast<void*>(base + kLinearScratchBytes * static_cast<size_t>(i)));
        attention_scratch_.emplace_back();
    }
}

int NativeProgram::add_buffer(int64_t cols, bool sampled) {
    buffers_.push_back({cols, sampled, {}, nullptr});
    return static_cast<int>(buffers_.size()) - 1;
}

void NativeProgram::set_ends(Columns hidden, int sampled, int logits) {
    hidden_ = hidden;
    sampled_ = sampled;
    logits_ = logits;
    for (auto& buffer : buffers_) {
        if (buffer.sampled) continue;  // those grow with the step
        buffer.memory.resize(static_cast<size_t>(buffer.cols * tile_rows_));
        buffer.data = buffer.memory.data();
    }
    for (const auto& op : body_) {
        if (op.code != OpCode::kAttention) continue;
        const int64_t floats = attention_scratch_floats(layout_, op.heads);
        attention_scratch_floats_ = std::max(attention_scratch_floats_, floats);
    }
    for (auto& scratch : attention_scratch_) {
        scratch = std::make_unique<float[]>(static_cast<size_t>(attention_scratch_floats_));
    }
}

Matrix NativeProgram::at(const Columns& columns) const {
    const Buffer& buffer = buffers_[static_cast<size_t>(columns.buffer)];
    return {buffer.data + columns.offset, buffer.cols};
}

ConstMatrix NativeProgram::read(const Columns& columns) const {
    const Matrix matrix = at(columns);
    return {matrix.data, matrix.stride};
}

void NativeProgram::run_body(const Step& step) {
    Buffer& sampled = buffers_[static_cast<size_t>(sampled_)];
    num_sampled_ = step.num_sampled;
    if (sampled.memory.size() < static_cast<size_t>(num_sampled_ * sampled.cols)) {
        sampled.memory.resize(static_cast<size_t>(num_sampled_ * sampled.cols));
    }
    // Tiles of about equal size, in whole row blocks of the linear kernels.
    const int64_t tiles = ceil_div(step.num_tokens, tile_rows_);
    const int64_t rows = std::min(tile_rows_, ceil_div(ceil_div(step.num_tokens, tiles), kRowBlock) * kRowBlock);
    int64_t taken = 0;
    for (int64_t begin = 0; begin < step.num_tokens; begin += rows) {
        Tile tile{begin, std::min(rows, step.num_tokens - begin), 0, 0};
        cut_requests(step, tile);
        run_tile(step, tile);
        const ConstMatrix hidden = read(hidden_);
        for (; taken < num_sampled_ && step.sampled_rows[taken] < begin + tile.rows; ++taken) {
            std::memcpy(sampled.memory.data() + taken * sampled.cols,
                        hidden.data + (step.sampled_rows[taken] - begin) * hidden.stride,
                        static_cast<size_t>(sampled.cols) * sizeof(float));
        }
    }
}

void NativeProgram::run_head(int64_t begin, int64_t end, float* logits) {
    for (auto& buffer : buffers_) {
        if (buffer.sampled) buffer.data = buffer.memory.data() + begin * buffer.cols;
    }
    buffers_[static_cast<size_t>(logits_)].data = logits;
    for (const auto& op : head_) run_op(op, nullptr, nullptr, end - begin);
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

void NativeProgram::run_tile(const Step& step, const Tile& tile) {
    for (const auto& op : body_) run_op(op, &step, &tile, tile.rows);
}

template <typename Job>
void NativeProgram::by_rows(int64_t rows, int64_t cost, Job&& job) {
    const int64_t pieces = std::clamp<int64_t>(rows * cost / kGrain, 1, rows);
    const int64_t size = ceil_div(rows, pieces);
    pool_.run(ceil_div(rows, size), [&](int64_t piece, int) {
        job(piece * size, std::min(rows, (piece + 1) * size));
    });
}

void NativeProgram::run_op(const Operation& op, const Step* step, const Tile* tile, int64_t rows) {
    switch (op.code) {
        case OpCode::kEmbed:
            return embed(op, step->token_ids + tile->begin, rows);
        case OpCode::kLinear:
            return linear(op, rows);
        case OpCode::kAttention:
            return attention(op, *step, *tile);
        case OpCode::kRmsNorm:
            return by_rows(rows, op.a.cols, [&](int64_t begin, int64_t end) {
                rms_norm_.rms_norm(read(op.a), op.weight, op.eps, op.dim, op.heads, at(op.out), begin, end);
            });
        case OpCode::kRope:
            return by_rows(rows, op.a.cols, [&](int64_t begin, int64_t end) {
                rope_.rope(at(op.a), op.heads, op.dim, op.rope, step->positions + tile->begin, begin, end);
            });
        case OpCode::kKvWrite: {
            const int64_t* slots = step->slots + op.group * step->num_tokens + tile->begin;
            return by_rows(rows, op.a.cols, [&](int64_t begin, int64_t end) {
                kv_write_.kv_write(layout_, kv_pool_, op.layer, read(op.a), read(op.b), op.weight, slots,
                                   begin, end);
            });
        }
        case OpCode::kAdd:
            return by_rows(rows, op.a.cols, [&](int64_t begin, int64_t end) {
                elementwise_.add(read(op.a), read(op.b), at(op.out), op.out.cols, begin, end);
            });
        case OpCode::kGated:
            return by_rows(rows, 4 * op.a.cols, [&](int64_t begin, int64_t end) {
                elementwise_.gated(op.activation, read(op.a), read(op.b), at(op.out), op.out.cols, begin, end);
            });
        case OpCode::kSoftcap:
            return by_rows(rows, 4 * op.a.cols, [&](int64_t begin, int64_t end) {
                elementwise_.softcap(at(op.a), op.softcap, op.a.cols, begin, end);
            });
    }
}

void NativeProgram::embed(const Operation& op, const int32_t* token_ids, int64_t rows) {
    const Matrix out = at(op.out);
    by_rows(rows, op.out.cols, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
            dequantize_row(*op.format, op.bytes + token_ids[row] * op.row_bytes, op.out.cols, op.scale,
                           out.data + row * out.stride);
        }
    });
}

void NativeProgram::linear(const Operation& op, int64_t rows) {
    const ConstMatrix x = read(op.a);
    LinearInput input{rows, x.data, x.stride, {nullptr}};
    const bool quantized = std::any_of(op.parts.begin(), op.parts.end(),
                                       [](const LinearPart& part) { return takes_quantized(part.weight); });
    if (quantized) {
        const size_t bytes = quantized_bytes(rows, op.a.cols);
        if (quantized_.size() < bytes) quantized_.resize(bytes);
        auto* groups = reinterpret_cast<QuantizedGroup*>(quantized_.data());
        const int64_t blocks = ceil_div(rows, kRowBlock);
        const int64_t pieces = std::clamp<int64_t>(rows * op.a.cols / kGrain, 1, blocks);
        const int64_t size = ceil_div(blocks, pieces) * kRowBlock;
        pool_.run(ceil_div(rows, size), [&](int64_t piece, int) {
            linear_kernels_.quantize_rows(x.data, x.stride, rows, op.a.cols, piece * size,
                                          std::min(rows, (piece + 1) * size), groups);
        });
        input.quantized = {groups};
    }
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

AttentionBatch NativeProgram::batch_of(const Operation& op, const Step& step, const Tile& tile) const {
    const int32_t* tables = step.block_tables + (op.group * step.num_chunks + tile.first_chunk) * step.num_blocks;
    return {tile.num_chunks, query_start_.data(), context_lens_.data(), tables, step.num_blocks};
}

const AttentionPlan& NativeProgram::plan_for(const Operation& op, const AttentionBatch& batch) {
    for (auto& entry : plans_) {
        if (entry.group != op.group || entry.window != op.window || entry.heads != op.heads) continue;
        if (!entry.valid) entry.plan.build(batch, layout_, op.heads, op.window, pool_.threads());
        entry.valid = true;
        return entry.plan;
    }
    plans_.push_back({op.group, op.window, op.heads, true, {}});
    plans_.back().plan.build(batch, layout_, op.heads, op.window, pool_.threads());
    return plans_.back().plan;
}

void NativeProgram::attention(const Operation& op, const Step& step, const Tile& tile) {
    const AttentionBatch batch = batch_of(op, step, tile);
    const AttentionPlan& plan = plan_for(op, batch);
    if (partials_.size() < static_cast<size_t>(plan.partial_floats())) {
        partials_.resize(static_cast<size_t>(plan.partial_floats()));
    }
    const AttentionArgs args{layout_, kv_pool_, op.layer, batch, read(op.a), at(op.out),
                             op.heads, op.scale, op.softcap, op.window, partials_.data(),
                             plan.chunks().data(), plan.members().data()};
    pool_.run(static_cast<int64_t>(plan.items().size()), [&](int64_t item, int worker) {
        attention_kernels_.attend(args, plan.items()[static_cast<size_t>(item)],
                                  attention_scratch_[static_cast<size_t>(worker)].get());
    });
    if (plan.merges().empty()) return;
    pool_.run(static_cast<int64_t>(plan.merges().size()), [&](int64_t item, int worker) {
        attention_kernels_.merge(args, plan.merges()[static_cast<size_t>(item)],
                                 attention_scratch_[static_cast<size_t>(worker)].get());
    });
}

}  // namespace kokuban
