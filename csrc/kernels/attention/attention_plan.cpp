#include "kernels/attention/attention_plan.h"

#include <algorithm>

#include "kernels/attention/attention_rows.h"

namespace kokuban {
namespace {

// Splits of the smallest item that a sequence is cut into: below it, reading 512 keys costs less
// than handing them to another thread.
constexpr int32_t kMinSplits = 2;

// Items for each thread: with fewer, the last one is waited for; with more, each is claimed for little.
constexpr int64_t kItemsPerThread = 4;

// Reads of a split's K and V that sharing has to save: states that are left for a merge cost about as much.
constexpr int32_t kLeastSaved = 4;

int64_t first_seen(int64_t position, int64_t window) {
    return window > 0 ? std::max<int64_t>(0, position + 1 - window) : 0;
}

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

void AttentionPlan::build(const AttentionBatch& batch, const KvLayout& layout, int64_t num_query_heads,
                          int64_t window, int threads) {
    chunks_.clear();
    members_.clear();
    pieces_.clear();
    items_.clear();
    merges_.clear();
    partial_floats_ = 0;
    num_kv_heads_ = layout.num_kv_heads;
    head_dim_ = layout.head_dim;
    group_ = num_query_heads / layout.num_kv_heads;
    for (int32_t request = 0; request < batch.num_requests; ++request) add_request(batch, request, window);
    done_.clear();
    for (const AttentionChunk& chunk : chunks_) done_.push_back(chunk.first_split);
    if (batch.num_requests > 1 && batch.block_tables) share(batch, layout.block_size, window);
    for (size_t i = 0; i < chunks_.size(); ++i) add_alone(static_cast<int32_t>(i), chunks_[i].end_split);
    if (threads > 1) cut_long_pieces(threads);
    place_states();
    add_items();
}

// Rows and splits, and 2 for what does not depend on the rows: reading K and V.
int64_t AttentionPlan::cost(const AttentionItem& piece) const {
    return (piece.num_tokens * group_ + 2) * (piece.end_split - piece.first_split);
}

void AttentionPlan::add_request(const AttentionBatch& batch, int32_t request, int64_t window) {
    const int64_t tokens = batch.query_start[request + 1] - batch.query_start[request];
    const int64_t start = batch.context_lens[request] - tokens, step = tokens_per_item(group_);
    for (int64_t token = 0; token < tokens; token += step) {
        const int64_t count = std::min(step, tokens - token), end = start + token + count;
        const auto first_split = static_cast<int32_t>(first_seen(start + token, window) / kSplit);
        chunks_.push_back({
            .request = request,
            .token = static_cast<int32_t>(token),
            .num_tokens = static_cast<int32_t>(count),
            .first_split = first_split,
            .end_split = static_cast<int32_t>(ceil_div(end, kSplit)),
            .last_joined = first_split,
            .partial = -1,
        });
    }
}

// Chunks of which at least two fit in an item may share. A larger one uses what it reads often enough.
void AttentionPlan::share(const AttentionBatch& batch, int64_t block_size, int64_t window) {
    candidates_.clear();
    for (size_t i = 0; i < chunks_.size(); ++i) {
        const AttentionChunk& chunk = chunks_[i];
        if (2 * chunk.num_tokens > tokens_per_item(group_)) continue;
        const int64_t rows = batch.query_start[chunk.request + 1] - batch.query_start[chunk.request];
        const int64_t first = batch.context_lens[chunk.request] - rows + chunk.token;
        const int64_t from = first_seen(first + chunk.num_tokens - 1, window);  // as the last row sees it
        candidates_.push_back({
            .chunk = static_cast<int32_t>(i),
            .blocks = batch.block_tables + chunk.request * batch.table_stride,
            .first_split = static_cast<int32_t>(ceil_div(from, kSplit)),
            .end_split = static_cast<int32_t>((first + 1) / kSplit),
        });
    }
    if (candidates_.size() < 2) return;
    for (const SharedSplits& shared : finder_.find(candidates_, block_size, window == 0)) add_shared(shared);
}

// Packs the chunks into as few pieces as hold their tokens, each about as full as the others.
void AttentionPlan::add_shared(const SharedSplits& shared) {
    int64_t tokens = 0;
    for (int32_t i = 0; i < shared.count; ++i) tokens += chunks_[static_cast<size_t>(shared.chunks[i])].num_tokens;
    const int64_t most = tokens_per_item(group_), aim = ceil_div(tokens, ceil_div(tokens, most));
    for (int32_t begin = 0, end = 0; begin < shared.count; begin = end) {
        int64_t taken = 0;
        for (; end < shared.count && taken < aim; ++end) {
            const int64_t more = chunks_[static_cast<size_t>(shared.chunks[end])].num_tokens;
            if (taken + more > most) break;
            taken += more;
        }
        // If not worth it, they stay with the splits that each chunk has alone.
        if ((end - begin - 1) * (shared.end_split - shared.first_split) < kLeastSaved) continue;
        for (int32_t i = begin; i < end; ++i) {
            add_alone(shared.chunks[i], shared.first_split);
            done_[static_cast<size_t>(shared.chunks[i])] = shared.end_split;
        }
        pieces_.push_back({
            .kv_head = 0,
            .first_member = static_cast<int32_t>(members_.size()),
            .num_members = end - begin,
            .num_tokens = static_cast<int32_t>(taken),
            .first_split = shared.first_split,
            .end_split = shared.end_split,
            .joins = false,
        });
        members_.insert(members_.end(), shared.chunks + begin, shared.chunks + end);
    }
}

// The splits of a chunk up to `end_split` that are in no piece yet.
void AttentionPlan::add_alone(int32_t index, int32_t end_split) {
    int32_t& done = done_[static_cast<size_t>(index)];
    if (done >= end_split) return;
    pieces_.push_back({
        .kv_head = 0,
        .first_member = static_cast<int32_t>(members_.size()),
        .num_members = 1,
        .num_tokens = chunks_[static_cast<size_t>(index)].num_tokens,
        .first_split = done,
        .end_split = end_split,
        .joins = false,
    });
    members_.push_back(index);
    done = end_split;
}

void AttentionPlan::cut_long_pieces(int threads) {
    int64_t total = 0;
    for (const AttentionItem& piece : pieces_) total += cost(piece) * num_kv_heads_;
    const int64_t limit = total / (threads * kItemsPerThread);
    const size_t uncut = pieces_.size();
    for (size_t i = 0; i < uncut; ++i) {
        const AttentionItem whole = pieces_[i];
        const int32_t splits = whole.end_split - whole.first_split;
        if (cost(whole) <= limit || splits < 2 * kMinSplits) continue;
        const int64_t rows = whole.num_tokens * group_;
        const auto size = static_cast<int32_t>(std::max<int64_t>(kMinSplits, limit / (rows + 2)));
        for (int32_t at = 0; at < splits; at += size) {
            AttentionItem part = whole;
            part.first_split = whole.first_split + at;
            part.end_split = std::min(part.first_split + size, whole.end_split);
            at == 0 ? void(pieces_[i] = part) : pieces_.push_back(part);
        }
    }
}

// Decides which pieces join their splits, and where the states of chunks in more than one piece lie.
void AttentionPlan::place_states() {
    pieces_of_.assign(chunks_.size(), 0);
    for (AttentionItem& piece : pieces_) {
        const int32_t* members = members_.data() + piece.first_member;
        piece.joins = std::all_of(members, members + piece.num_members, [&](int32_t i) {
            return chunks_[static_cast<size_t>(i)].first_split == piece.first_split;
        });
        for (int32_t i = 0; i < piece.num_members; ++i) {
            ++pieces_of_[static_cast<size_t>(members[i])];
            if (piece.joins) chunks_[static_cast<size_t>(members[i])].last_joined = piece.end_split - 1;
        }
    }
    for (size_t i = 0; i < chunks_.size(); ++i) {
        if (pieces_of_[i] < 2) continue;
        AttentionChunk& chunk = chunks_[i];
        chunk.partial = partial_floats_;
        partial_floats_ += num_kv_heads_ * chunk.num_states() * chunk.num_tokens * group_ *
                           attention_state_floats(head_dim_);
        for (int32_t head = 0; head < num_kv_heads_; ++head) merges_.push_back({static_cast<int32_t>(i), head});
    }
}

void AttentionPlan::add_items() {
    std::sort(pieces_.begin(), pieces_.end(), [&](const AttentionItem& a, const AttentionItem& b) {
        return cost(a) > cost(b);
    });
    for (const AttentionItem& piece : pieces_) {
        for (int32_t head = 0; head < num_kv_heads_; ++head) {
            items_.push_back(piece);
            items_.back().kv_head = head;
        }
    }
}

}  // namespace kokuban
