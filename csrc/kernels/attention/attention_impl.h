// Attention over sixteen lanes. Included after one of simd/*.h; KOKUBAN_VARIANT is the name of the
// table to define, KOKUBAN_ROWS how many query rows (a row and head) share one register block.
//
// An item is a block of rows against some splits of keys. For each split: all rows' scores tile by
// tile (score_split), each row's softmax (soften), then the weighted sum of V (weigh_split). A block
// of rows shares the loads and conversions of K and V, never an accumulator. `Work` does it: in floats
// for every dtype but int8, which has integers of its own (attention_int8.h).
#include "kernels/attention/attention.h"

#include "kernels/kv_write/rotation.h"

#include "kernels/attention/attention_tiles.h"

#include "kernels/attention/attention_scores.h"

#include "kernels/attention/attention_values.h"

#include "kernels/attention/attention_softmax.h"

#include "kernels/attention/attention_work.h"

#include "kernels/attention/attention_int8.h"

namespace {

using kokuban::AttentionArgs;
using kokuban::AttentionChunk;
using kokuban::AttentionItem;
using kokuban::AttentionMerge;
using kokuban::KvDtype;

// Joins what is known of a row with what the next split gives; either may have seen no key.
KOKUBAN_INLINE void join(float* state, const float* next, int64_t head_dim) {
    const int64_t columns = padded(head_dim);
    const float m = state[columns], l = state[columns + 1];
    const float next_m = next[columns], next_l = next[columns + 1];
    if (next_l == 0.0f) return;
    if (l == 0.0f) {
        memcpy(state, next, static_cast<size_t>(columns + 2) * sizeof(float));
        return;
    }
    const float largest = m > next_m ? m : next_m;
    const F32 a = f_exp2_below(f_set1(m - largest)), b = f_exp2_below(f_set1(next_m - largest));
    for (int64_t d = 0; d < columns; d += kLanes)
        f_store(state + d, f_fma(f_load(next + d), b, f_mul(f_load(state + d), a)));
    float sums[kLanes];
    f_store(sums, f_fma(f_set1(next_l), b, f_mul(f_set1(l), a)));
    state[columns] = largest;
    state[columns + 1] = sums[0];
}

KOKUBAN_INLINE void write_out(const float* state, int64_t head_dim, float* out) {
    const F32 share = f_div(f_set1(1.0f), f_set1(state[padded(head_dim) + 1]));
    for (int64_t d = 0; d < head_dim; d += kLanes) {
        const F32 o = f_mul(f_load(state + d), share);
        if (head_dim - d >= kLanes) {
            f_store(out + d, o);
        } else {
            f_store_n(out + d, o, static_cast<int>(head_dim - d));
        }
    }
}

// Looks up the tiles of one split that hold keys [begin, end) of it.
template <typename Dtype>
KOKUBAN_INLINE Tiles<Dtype> find_tiles(const AttentionArgs& args, int64_t request, int64_t head,
                                       int64_t base, Range keys) {
    using Element = typename Dtype::Element;
    const auto& layout = args.layout;
    const int32_t* table = args.batch.block_tables + request * args.batch.table_stride;
    const int64_t fixed = args.layer * layout.layer_bytes + head * layout.head_bytes;
    Tiles<Dtype> found;
    found.range = tiles_of(keys);
    for (int tile = found.range.begin; tile < found.range.end; ++tile) {
        const int64_t token = base + tile * kLanes, offset = token % layout.block_size;
        const uint8_t* k = args.pool + table[token / layout.block_size] * layout.block_bytes + fixed;
        const uint8_t* v = k + layout.side_bytes;
        found.k.at[tile] = reinterpret_cast<const Element*>(k + offset / kLanes * layout.tile_bytes);
        found.v.at[tile] = reinterpret_cast<const Element*>(v + offset / kLanes * layout.tile_bytes);
        if constexpr (Dtype::kScaled) {
            found.k.scales[tile] = reinterpret_cast<const float*>(k + layout.elements_bytes) + offset;
            found.v.scales[tile] = reinterpret_cast<const float*>(v + layout.elements_bytes) + offset;
        }
    }
    return found;
}

// Token `token` of a chunk, with the query heads of a KV head.
KOKUBAN_INLINE Token token_of(const AttentionArgs& args, const AttentionChunk& chunk, int64_t kv_head, int64_t token) {
    const auto& batch = args.batch;
    const int64_t first = batch.query_start[chunk.request], end = batch.query_start[chunk.request + 1];
    const int64_t row = first + chunk.token + token;
    const int64_t column = kv_head * (args.num_query_heads / args.layout.num_kv_heads) * args.layout.head_dim;
    return {
        .q = args.q.data + row * args.q.stride + column,
        .out = args.out.data + row * args.out.stride + column,
        .position = batch.context_lens[chunk.request] - (end - row),
    };
}

// The first of the floats where the rows of a chunk leave the state that `split` belongs to.
KOKUBAN_INLINE float* state_of(const AttentionArgs& args, const AttentionChunk& chunk, int64_t kv_head, int split) {
    const int64_t group = args.num_query_heads / args.layout.num_kv_heads;
    const int64_t rows = chunk.num_tokens * group * state_floats(args.layout.head_dim);
    return args.partials + chunk.partial + (kv_head * chunk.num_states() + chunk.state_of(split)) * rows;
}

// An item at work: its tokens, its rows, and where their results go.
template <typename Dtype>
class ItemWork {
   public:
    ItemWork(const AttentionArgs& args, const AttentionItem& item, float* scratch)
        : args_(args),
          item_(item),
          rows_(place_rows(scratch)),
          stride_(state_floats(rows_.head_dim)),
          known_(scratch + 4 * rows_.count),
          next_(known_ + rows_.count * stride_),
          work_(rows_, next_ + rows_.count * stride_) {}

    void run() {
        auto tiles = tiles_at(item_.first_split);
        for (int split = item_.first_split; split < item_.end_split; ++split) {
            const auto following = tiles_at(split + 1);
            look_at(split);
            const bool is_first = split == item_.first_split;
            work_.attend_split(tiles, following, args_.scale, args_.softcap, item_.joins && is_first ? known_ : next_);
            tiles = following;
            if (!item_.joins) {
                store(next_, split);
            } else if (!is_first) {
                for (int row = 0; row < rows_.count; ++row)
                    join(known_ + row * stride_, next_ + row * stride_, rows_.head_dim);
            }
        }
        if (item_.joins) finish();
    }

   private:
    // Fills tokens_, and the rows' queries; what rows see is not known yet.
    Rows place_rows(float* scratch) {
        const int64_t group = args_.num_query_heads / args_.layout.num_kv_heads, head_dim = args_.layout.head_dim;
        int tokens = 0;
        for (int member = 0; member < item_.num_members; ++member) {
            const AttentionChunk& chunk = chunk_of(member);
            for (int token = 0; token < chunk.num_tokens; ++token)
                tokens_[tokens++] = token_of(args_, chunk, item_.kv_head, token);
        }
        const int count = static_cast<int>(tokens * group);
        auto** queries = reinterpret_cast<const float**>(scratch);
        auto* seen = reinterpret_cast<Range*>(scratch + 2 * count);
        for (int token = 0, row = 0; token < tokens; ++token)
            for (int64_t head = 0; head < group; ++head) queries[row++] = tokens_[token].q + head * head_dim;
        return {head_dim, group, args_.window, count, queries, seen};
    }

    const AttentionChunk& chunk_of(int member) const {
        return args_.chunks[args_.members[item_.first_member + member]];
    }

    Tiles<Dtype> tiles_at(int split) const {
        const int64_t base = static_cast<int64_t>(split) * kSplit;
        Range keys{0, 0};
        if (split < item_.end_split) {
            keys = {visible(tokens_[0].position, args_.window, base).begin,
                    visible(tokens_[item_.num_tokens - 1].position, args_.window, base).end};
        }
        return find_tiles<Dtype>(args_, chunk_of(0).request, item_.kv_head, base, keys);
    }

    void look_at(int split) {
        const int64_t base = static_cast<int64_t>(split) * kSplit;
        for (int token = 0, row = 0; token < item_.num_tokens; ++token) {
            const Range keys = visible(tokens_[token].position, args_.window, base);
            for (int64_t head = 0; head < rows_.group; ++head) rows_.seen[row++] = keys;
        }
    }

    // Leaves the rows' states where the merge looks for them.
    void store(const float* states, int split) const {
        for (int member = 0; member < item_.num_members; ++member)
            states = store(chunk_of(member), states, split);
    }

    const float* store(const AttentionChunk& chunk, const float* states, int split) const {
        const int64_t floats = chunk.num_tokens * rows_.group * stride_;
        memcpy(state_of(args_, chunk, item_.kv_head, split), states, static_cast<size_t>(floats) * sizeof(float));
        return states + floats;
    }

    // A chunk that was not cut is done; the others wait for the merge.
    void finish() const {
        const float* state = known_;
        for (int member = 0, token = 0; member < item_.num_members; ++member) {
            const AttentionChunk& chunk = chunk_of(member);
            const int end = token + chunk.num_tokens;
            if (chunk.partial >= 0) {
                state = store(chunk, state, item_.first_split);
                token = end;
            }
            for (; token < end; ++token)
                for (int64_t head = 0; head < rows_.group; ++head, state += stride_)
                    write_out(state, rows_.head_dim, tokens_[token].out + head * rows_.head_dim);
        }
    }

    const AttentionArgs& args_;
    const AttentionItem& item_;
    Token tokens_[kokuban::kMostTokens];
    Rows rows_;
    int64_t stride_;
    float* known_;  // [rows]: states of the splits so far
    float* next_;   // [rows]: of the split in hand
    Work<Dtype> work_;
};

template <typename Dtype>
void attend_item(const AttentionArgs& args, const AttentionItem& item, float* scratch) {
    ItemWork<Dtype>(args, item, scratch).run();
}

void attend(const AttentionArgs& args, const AttentionItem& item, float* scratch) {
    switch (args.layout.dtype) {
        case KvDtype::kBf16: return attend_item<Bf16>(args, item, scratch);
        case KvDtype::kFp16: return attend_item<Fp16>(args, item, scratch);
        case KvDtype::kFp32: return attend_item<Fp32>(args, item, scratch);
        case KvDtype::kInt8: return attend_item<Int8>(args, item, scratch);
        case KvDtype::kFp8E4m3: return attend_item<Fp8E4m3>(args, item, scratch);
    }
}

void merge(const AttentionArgs& args, const AttentionMerge& item, float* scratch) {
    const AttentionChunk& chunk = args.chunks[item.chunk];
    const int64_t head_dim = args.layout.head_dim, stride = state_floats(head_dim);
    const int64_t group = args.num_query_heads / args.layout.num_kv_heads, rows = chunk.num_tokens * group;
    const float* states = state_of(args, chunk, item.kv_head, chunk.first_split);
    for (int64_t row = 0; row < rows; ++row) {
        memset(scratch, 0, static_cast<size_t>(stride) * sizeof(float));
        for (int64_t state = 0; state < chunk.num_states(); ++state)
            join(scratch, states + (state * rows + row) * stride, head_dim);
        write_out(scratch, head_dim,
                  token_of(args, chunk, item.kv_head, row / group).out + row % group * head_dim);
    }
}

}  // namespace

const kokuban::AttentionKernels kokuban::KOKUBAN_VARIANT{attend, merge};
