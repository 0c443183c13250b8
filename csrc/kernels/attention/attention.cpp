#include "kernels/attention/attention_plan.h"

#include <algorithm>

#include "common/variants.h"

namespace kokuban {
namespace {

// Rows (a token and a query head) of an item: enough that converting K and V costs little beside
// using them, few enough that their scores (1 KiB a row) stay in the second cache level.
constexpr int64_t kItemRows = 48;

// Splits of the smallest item that a sequence is cut into: below it, reading 512 keys costs less
// than handing them to another thread.
constexpr int32_t kMinSplits = 2;

// Items for each thread: with fewer, the last one is waited for; with more, each is claimed for little.
constexpr int64_t kItemsPerThread = 4;

int64_t padded(int64_t dim) { return (dim + kKvTile - 1) / kKvTile * kKvTile; }
int64_t state_floats(int64_t head_dim) { return padded(head_dim) + kKvTile; }

int64_t tokens_per_item(int64_t group) { return std::max<int64_t>(1, kItemRows / group); }

int32_t first_split(int64_t position, int64_t window) {
    return static_cast<int32_t>(window > 0 ? std::max<int64_t>(0, position + 1 - window) / kSplit : 0);
}

// Rows and splits, and 2 for what does not depend on the rows: reading K and V.
int64_t cost(const AttentionItem& item, int64_t group) {
    return (item.num_tokens * group + 2) * (item.end_split - item.first_split);
}

}  // namespace

const AttentionKernels& attention_kernels(Isa isa) {
    return choose(isa, attention_scalar, attention_avx2, attention_avx512);
}

int64_t attention_scratch_floats(const KvLayout& layout, int64_t num_query_heads) {
    const int64_t group = num_query_heads / layout.num_kv_heads;
    const int64_t rows = group * tokens_per_item(group);
    // Two states and the scores of a split for each row.
    const int64_t common = rows * (2 * state_floats(layout.head_dim) + kSplit);
    if (layout.dtype == KvDtype::kInt8) {
        // For each row the sums of a split, in half as many floats its query and its weights as 16-bit
        // integers, and two scales.
        return common + rows * (padded(layout.head_dim) * 3 / 2 + kSplit / 2 + 2);
    }
    return common + 4 * kKvTile * padded(layout.head_dim);  // Four tiles of K or V as float32.
}

void AttentionPlan::build(const AttentionBatch& batch, const KvLayout& layout, int64_t num_query_heads,
                          int64_t window, int threads) {
    items_.clear();
    merges_.clear();
    partial_floats_ = 0;
    num_kv_heads_ = layout.num_kv_heads;
    head_dim_ = layout.head_dim;
    group_ = num_query_heads / layout.num_kv_heads;
    window_ = window;
    for (int32_t request = 0; request < batch.num_requests; ++request) add_request(batch, request);
    if (threads > 1) cut_long_items(threads);
    std::sort(items_.begin(), items_.end(), [&](const AttentionItem& a, const AttentionItem& b) {
        return cost(a, group_) > cost(b, group_);
    });
}

void AttentionPlan::add_request(const AttentionBatch& batch, int32_t request) {
    const int64_t tokens = batch.query_start[request + 1] - batch.query_start[request];
    const int64_t start = batch.context_lens[request] - tokens, step = tokens_per_item(group_);
    for (int64_t token = 0; token < tokens; token += step) {
        const int64_t count = std::min(step, tokens - token), end = start + token + count;
        for (int32_t head = 0; head < num_kv_heads_; ++head) {
            items_.push_back({
                .request = request,
                .kv_head = head,
                .token = static_cast<int32_t>(token),
                .num_tokens = static_cast<int32_t>(count),
                .first_split = first_split(start + token, window_),
                .end_split = static_cast<int32_t>((end + kSplit - 1) / kSplit),
                .partial = -1,
            });
        }
    }
}

void AttentionPlan::cut_long_items(int threads) {
    int64_t total = 0;
    for (const AttentionItem& item : items_) total += cost(item, group_);
    const int64_t limit = total / (threads * kItemsPerThread);
    const size_t uncut = items_.size();
    for (size_t i = 0; i < uncut; ++i) {
        const AttentionItem whole = items_[i];
        const int32_t splits = whole.end_split - whole.first_split;
        if (cost(whole, group_) <= limit || splits < 2 * kMinSplits) continue;
        const int64_t rows = whole.num_tokens * group_, split_floats = rows * state_floats(head_dim_);
        const auto piece = static_cast<int32_t>(std::max<int64_t>(kMinSplits, limit / (rows + 2)));
        for (int32_t at = 0; at < splits; at += piece) {
            AttentionItem part = whole;
            part.first_split = whole.first_split + at;
            part.end_split = std::min(part.first_split + piece, whole.end_split);
            part.partial = partial_floats_ + at * split_floats;
            at == 0 ? void(items_[i] = part) : items_.push_back(part);
        }
        merges_.push_back({whole.request, whole.kv_head, whole.token, whole.num_tokens, splits, partial_floats_});
        partial_floats_ += splits * split_floats;
    }
}

}  // namespace kokuban
