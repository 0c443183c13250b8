// A Program lowered to native calls: built once, then run step by step without Python between
// operations. kokuban.runner.lower builds it, kokuban.runner.native runs it.
//
// A step of T tokens is cut into tiles of at most `tile_rows` rows, and the body runs tile after
// tile: since each row's result is the same whatever is beside it, this changes nothing but the
// size of the buffers. The rows of its values that are sampled are collected; then the head runs on
// them, as many at a time as the caller has room for logits.
//
// Operations run in stages (operation.h), with a barrier after each.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/isa.h"
#include "common/matrix.h"
#include "common/thread_pool.h"
#include "kernels/attention/attention_plan.h"
#include "kernels/kv_write/kv_write.h"
#include "kernels/rms_norm/rms_norm.h"
#include "program/operation.h"

namespace kokuban {

// The arrays of a step; see kokuban.runner.inputs.StepInput.
struct Step {
    int64_t num_tokens;   // T
    int64_t num_chunks;   // R
    int64_t num_blocks;   // M
    const int32_t* token_ids;
    const int32_t* positions;
    const int32_t* query_start;
    const int64_t* slots;          // [G][T]
    const int32_t* block_tables;   // [G][R][M]
    int64_t num_sampled;
    const int32_t* sampled_rows;   // ascending
};

class NativeProgram {
   public:
    NativeProgram(ThreadPool& pool, Isa isa, const KvLayout& layout, uint8_t* kv_pool,
                  int64_t tile_rows);
    NativeProgram(const NativeProgram&) = delete;
    NativeProgram& operator=(const NativeProgram&) = delete;

    // A float32 buffer with a row for each token of a tile, or for each row that the head runs on.
    int add_buffer(int64_t cols);
    void add_body(Operation op) { body_.push_back(std::move(op)); }
    void add_head(Operation op) { head_.push_back(std::move(op)); }
    // The head reads the sampled rows of `from` in `to`.
    void take_rows(Columns from, Columns to) { taken_.push_back({from, to}); }
    // All has been added; the head writes this buffer.
    void finish(int logits);

    int64_t tile_rows() const { return tile_rows_; }
    void run_body(const Step& step);
    // Logits of the sampled rows begin … end - 1 of the last run_body, at most tile_rows of them, to
    // rows of `logits` that are `stride` floats apart.
    void run_head(int64_t begin, int64_t end, float* logits, int64_t stride);
    // The same for a value on the way to the logits; what comes after it is not computed.
    void run_head_until(Columns value, int64_t begin, int64_t end, float* out, int64_t stride);

    // While on, each stage's time is added up; else a step pays nothing for it. Zeroes the sums.
    void time_stages(bool on);
    const std::vector<Stage>& body_stages() const { return body_stages_; }
    const std::vector<Stage>& head_stages() const { return head_stages_; }

   private:
    struct Buffer {
        int64_t cols, stride;
        bool external = false;  // logits, and what the head takes: set for each call
        float* data = nullptr;
    };
    // Rows that go from the body to the head.
    struct Taken {
        Columns from, to;
        std::vector<float> memory = {};  // as many as a step samples
        int64_t stride = 0;
    };
    // The rows that operations run on at once: a piece of a step, or of its sampled rows.
    struct Tile {
        const Step* step;  // null in the head
        int64_t begin, rows;
        int64_t first_chunk, num_chunks;
    };

    Matrix at(const Columns& columns) const;
    ConstMatrix read(const Columns& columns) const;
    void allocate();
    void run_stages(const std::vector<Operation>& ops, std::vector<Stage>& stages, const Tile& tile);
    void run_stage(const std::vector<Operation>& ops, const Stage& stage, const Tile& tile);
    void run_rows(const std::vector<Operation>& ops, const Stage& stage, const Tile& tile);
    void row_op(const Operation& op, const Tile& tile, int64_t begin, int64_t end);
    void take(const Step& step, const Tile& tile, int64_t first, int64_t count);
    void give_taken(int64_t begin);
    void cut_requests(const Step& step, Tile& tile);
    void linear(const Operation& op, int64_t rows);
    void attention(const Operation& op, const Tile& tile);
    void embed(const Operation& op, const int32_t* token_ids, int64_t begin, int64_t end);
    AttentionBatch batch_of(const Operation& op, const Tile& tile) const;
    const AttentionPlan& plan_for(const Operation& op, const AttentionBatch& batch);

    ThreadPool& pool_;
    KvLayout layout_;
    uint8_t* kv_pool_;
    int64_t tile_rows_;
    std::vector<Buffer> buffers_;
    std::shared_ptr<uint8_t> memory_;  // of buffers and scratch
    std::vector<Operation> body_, head_;
    std::vector<Stage> body_stages_, head_stages_;
    std::vector<Taken> taken_;
    int logits_ = -1;
    bool timed_ = false;

    // Of the tile that runs.
    std::vector<int32_t> query_start_, context_lens_;
    struct PlanOfWindow {
        int64_t group, window, heads;  // block tables are those of a group
        bool valid;
        AttentionPlan plan;
    };
    std::vector<PlanOfWindow> plans_;

    std::vector<float> partials_;
    QuantizedGroup* quantized_ = nullptr;
    std::vector<float*> attention_scratch_;
    std::vector<void*> linear_scratch_;

    const LinearKernels& linear_kernels_;
    const AttentionKernels& attention_kernels_;
    const ElementwiseKernels& elementwise_;
    const RmsNormKernels& rms_norm_;
    const RopeKernels& rope_;
    const KvWriteKernels& kv_write_;
};

}  // namespace kokuban
