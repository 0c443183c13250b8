// A Program lowered to native calls: built once, then run step by step without Python between
// operations. kokuban.runner.lower builds it, kokuban.runner.native runs it.
//
// A step of T tokens is cut into tiles of at most `tile_rows` rows, and the body runs tile after
// tile: since each row's result is the same whatever is beside it, this changes nothing but the
// size of the buffers. The hidden rows that are sampled are collected; then the head runs on them,
// as many at a time as the caller has room for logits.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/isa.h"
#include "common/matrix.h"
#include "common/thread_pool.h"
#include "kernels/attention/attention_plan.h"
#include "kernels/dequantize/dequantize.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/kv_write/kv_write.h"
#include "kernels/linear/linear.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/rope/rope.h"

namespace kokuban {

// Some columns of a buffer.
struct Columns {
    int buffer = -1;
    int64_t offset = 0;
    int64_t cols = 0;
};

enum class OpCode { kEmbed, kRmsNorm, kLinear, kRope, kKvWrite, kAttention, kAdd, kGated, kSoftcap };

// One weight of a linear operation, and where its outputs go inside `out`.
struct LinearPart {
    PackedMatrix weight;
    const float* bias;  // null: none
    int64_t offset;
};

struct Operation {
    OpCode code;
    Columns a, b, out;
    std::vector<LinearPart> parts;       // linear
    const uint8_t* bytes = nullptr;      // embed: the raw rows
    const WeightFormat* format = nullptr;
    int64_t row_bytes = 0;
    const float* weight = nullptr;       // rms_norm; kv_write: k_offset, or null
    float scale = 0.0f;                  // embed, attention
    float eps = 0.0f;
    float softcap = 0.0f;                // attention, softcap
    int64_t dim = 0;                     // rms_norm, rope: head_dim
    int64_t heads = 0;                   // rms_norm: runs; rope, attention: heads
    int64_t group = 0, layer = 0;        // KV group, layer inside it
    int64_t window = 0;
    RopeTable rope{};
    Activation activation{};
};

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

    // A float32 buffer with a row for each token of a tile, or for each sampled row of a step.
    int add_buffer(int64_t cols, bool sampled);
    void add_body(Operation op) { body_.push_back(std::move(op)); }
    void add_head(Operation op) { head_.push_back(std::move(op)); }
    // Where the body leaves the hidden state, where the head reads its rows, where it writes.
    void set_ends(Columns hidden, int sampled, int logits);

    void run_body(const Step& step);
    // Logits of the sampled rows begin … end - 1 of the last run_body, to [end - begin][vocabulary].
    void run_head(int64_t begin, int64_t end, float* logits);

   private:
    struct Buffer {
        int64_t cols;
        bool sampled;
        std::vector<float> memory;
        float* data = nullptr;
    };
    // The piece of a step that the body runs on at once.
    struct Tile {
        int64_t begin, rows;
        int64_t first_chunk, num_chunks;
    };

    Matrix at(const Columns& columns) const;
    ConstMatrix read(const Columns& columns) const;
    void run_tile(const Step& step, const Tile& tile);
    void run_op(const Operation& op, const Step* step, const Tile* tile, int64_t rows);
    void cut_requests(const Step& step, Tile& tile);
    void linear(const Operation& op, int64_t rows);
    void attention(const Operation& op, const Step& step, const Tile& tile);
    void embed(const Operation& op, const int32_t* token_ids, int64_t rows);
    AttentionBatch batch_of(const Operation& op, const Step& step, const Tile& tile) const;
    const AttentionPlan& plan_for(const Operation& op, const AttentionBatch& batch);
    template <typename Job>
    void by_rows(int64_t rows, int64_t cost, Job&& job);

    ThreadPool& pool_;
    Isa isa_;
    KvLayout layout_;
    uint8_t* kv_pool_;
    int64_t tile_rows_;
    std::vector<Buffer> buffers_;
    std::vector<Operation> body_, head_;
    Columns hidden_;
    int sampled_ = -1, logits_ = -1;
    int64_t num_sampled_ = 0;

    // Of the tile that runs.
    std::vector<int32_t> query_start_, context_lens_;
    struct PlanOfWindow {
        int64_t group, window, heads;  // block tables are those of a group
        bool valid;
        AttentionPlan plan;
    };
    std::vector<PlanOfWindow> plans_;

    std::vector<float> partials_;
    std::vector<uint8_t> quantized_;
    std::vector<std::unique_ptr<float[]>> attention_scratch_;
    std::vector<void*> linear_scratch_;
    std::unique_ptr<uint8_t[]> linear_memory_;
    int64_t attention_scratch_floats_ = 0;

    const LinearKernels& linear_kernels_;
    const AttentionKernels& attention_kernels_;
    const ElementwiseKernels& elementwise_;
    const RmsNormKernels& rms_norm_;
    const RopeKernels& rope_;
    const KvWriteKernels& kv_write_;
};

}  // namespace kokuban
