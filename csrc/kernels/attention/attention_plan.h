// Cuts the attention of a step into work items for threads. See attention.h for what they compute.
#pragma once

#include <vector>

#include "kernels/attention/attention.h"

namespace kokuban {

// The work of a step, cut so that `threads` threads end at about the same time: long prompts by
// query tokens, long contexts with few query rows by keys. Largest items first.
class AttentionPlan {
   public:
    // Reads query_start and context_lens only. Keeps its memory from call to call.
    void build(const AttentionBatch& batch, const KvLayout& layout, int64_t num_query_heads,
               int64_t window, int threads);

    const std::vector<AttentionItem>& items() const { return items_; }
    const std::vector<AttentionMerge>& merges() const { return merges_; }
    int64_t partial_floats() const { return partial_floats_; }

   private:
    void add_request(const AttentionBatch& batch, int32_t request);
    void cut_long_items(int threads);

    std::vector<AttentionItem> items_;
    std::vector<AttentionMerge> merges_;
    int64_t partial_floats_ = 0;
    int64_t num_kv_heads_ = 0, head_dim_ = 0, group_ = 0, window_ = 0;
};

}  // namespace kokuban
