#include <algorithm>

#include "program/operation.h"

namespace kokuban {
namespace {

// Floats of the widest value that a few rows of a stage take: with its other values it stays in a
// first cache of 32 KB.
constexpr int64_t kBlockFloats = 4096;
constexpr int64_t kMaxBlockRows = 8;

bool is_by_rows(const Operation& op) { return op.code != OpCode::kLinear && op.code != OpCode::kAttention; }

// Passes over a column, in those of an addition.
int64_t cost_of_column(OpCode code) {
    switch (code) {
        case OpCode::kGated:
        case OpCode::kSoftcap:
        case OpCode::kKvWrite:
        case OpCode::kEmbed: return 4;
        default: return 1;
    }
}

constexpr int64_t kQuantizeCost = 3;

void add_row_costs(Stage& stage, const std::vector<Operation>& ops) {
    int64_t widest = stage.quantized.cols;
    stage.row_cost = kQuantizeCost * stage.quantized.cols;
    for (size_t i = stage.begin; i < stage.end; ++i) {
        const int64_t cols = std::max(ops[i].a.cols, ops[i].out.cols);
        stage.row_cost += cost_of_column(ops[i].code) * cols;
        widest = std::max(widest, cols);
    }
    stage.block_rows = std::clamp<int64_t>(kBlockFloats / widest, 1, kMaxBlockRows);
}

}  // namespace

bool takes_quantized(const Operation& linear) {
    return std::any_of(linear.parts.begin(), linear.parts.end(),
                       [](const LinearPart& part) { return takes_quantized(part.weight); });
}

std::vector<Stage> make_stages(const std::vector<Operation>& ops) {
    std::vector<Stage> stages;
    for (size_t i = 0; i < ops.size();) {
        size_t end = i;
        while (end < ops.size() && is_by_rows(ops[end])) ++end;
        Stage rows{.begin = i, .end = end, .by_rows = true, .quantized = {}};
        if (end < ops.size() && ops[end].code == OpCode::kLinear && takes_quantized(ops[end])) {
            rows.quantized = ops[end].a;
        }
        if (end > i || rows.quantized.cols) {
            add_row_costs(rows, ops);
            stages.push_back(rows);
        }
        if (end < ops.size()) {
            stages.push_back({.begin = end, .end = end + 1, .by_rows = false, .quantized = {}});
            ++end;
        }
        i = end;
    }
    return stages;
}

}  // namespace kokuban
