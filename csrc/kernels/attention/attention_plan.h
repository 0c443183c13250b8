// Cuts the attention of a step into work items for threads. See attention.h for what they compute.
#pragma once

#include <vector>

#include "kernels/attention/attention.h"
#include "kernels/attention/attention_sharing.h"

namespace kokuban {

// The work of a step, cut so that `threads` threads end at about the same time: long prompts by
// query tokens, long contexts with few query rows by keys. Splits that several requests have in common are
// read by one item for all of them. Largest items first.
class AttentionPlan {
   public:
    // Keeps its memory from call to call. Without block tables nothing is shared.
    void build(const AttentionBatch& batch, const KvLayout& layout, int64_t num_query_heads,
               int64_t window, int threads);

    const std::vector<AttentionItem>& items() const { return items_; }
    const std::vector<AttentionMerge>& merges() const { return merges_; }
    const std::vector<AttentionChunk>& chunks() const { return chunks_; }
    const std::vector<int32_t>& members() const { return members_; }
    int64_t partial_floats() const { return partial_floats_; }

   private:
    void add_request(const AttentionBatch& batch, int32_t request, int64_t window);
    void share(const AttentionBatch& batch, int64_t block_size, int64_t window);
    void add_shared(const SharedSplits& shared);
    void add_alone(int32_t chunk, int32_t end_split);
    void cut_long_pieces(int threads);
    void place_states();
    void add_items();
    int64_t cost(const AttentionItem& piece) const;

    SharingFinder finder_;
    std::vector<SharingCandidate> candidates_;
    std::vector<AttentionChunk> chunks_;
    std::vector<int32_t> members_;
    std::vector<int32_t> done_;         // of each chunk: the splits before this one are in pieces
    std::vector<int32_t> pieces_of_;    // of each chunk
    std::vector<AttentionItem> pieces_;  // items of KV head 0
    std::vector<AttentionItem> items_;
    std::vector<AttentionMerge> merges_;
    int64_t partial_floats_ = 0;
    int64_t num_kv_heads_ = 0, head_dim_ = 0, group_ = 0;
};

}  // namespace kokuban
