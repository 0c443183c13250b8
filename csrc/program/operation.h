// The operations of a lowered Program, and the stages in which they run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/dequantize/dequantize.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/linear/linear.h"
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

// What runs between two barriers: one product, one attention, or a run of operations that make a row
// of their outputs from the same row of their inputs alone. Those are done one after another on a few
// rows at a time, while these are in a core's first cache; and at the end, with the same rows still
// there, comes the quantisation of what the product behind them reads.
struct Stage {
    size_t begin, end;             // operations of the list
    bool by_rows;
    Columns quantized;             // cols = 0: none
    int64_t row_cost = 0;          // of one row, see kGrain
    int64_t block_rows = 1;        // rows at a time
    int64_t nanoseconds = 0;       // spent since timing began
};

std::vector<Stage> make_stages(const std::vector<Operation>& ops);

// Whether one of the weights takes x quantised.
bool takes_quantized(const Operation& linear);

}  // namespace kokuban
