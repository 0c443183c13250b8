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

#include "kernels/attention/attention_softmax.h"

#include "kernels/attention/attention_work.h"

#include "kernels/attention/attention_int8.h"

namespace {

using kokuban::AttentionArgs;
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
    const F32 a = f_exp(f_set1(m - largest)), b = f_exp(f_set1(next_m - largest));
    for (int64_t d = 0; d < columns; d += kLanes)
        f_store(state + d, f_fma(f_load(next + d), b, f_mul(f_load(state + d), a)));
    float sums[kLanes];
    f_store(sums, f_fma(f_set1(next_l), b, f_mul(f_set1(l), a)));
    state[columns] = largest;
    state[columns + 1] = sums[0];
}

KOKUBAN_INLINE void write_out(const float* state, int64_t head_dim, float* out) {
    const F32 l = f_set1(state[padded(head_dim) + 1]);
    for (int64_t d = 0; d < head_dim; d += kLanes) {
        const F32 o = f_div(f_load(state + d), l);
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

KOKUBAN_INLINE Rows rows_of(const AttentionArgs& args, const AttentionItem& item) {
    const auto& batch = args.batch;
    const int64_t first = batch.query_start[item.request], tokens = batch.query_start[item.request + 1] - first;
    const int64_t group = args.num_query_heads / args.layout.num_kv_heads, head_dim = args.layout.head_dim;
    return {
        .q = args.q.data + (first + item.token) * args.q.stride + item.kv_head * group * head_dim,
        .q_stride = args.q.stride,
        .head_dim = head_dim,
        .group = group,
        .window = args.window,
        .position = batch.context_lens[item.request] - tokens + item.token,
        .count = static_cast<int>(item.num_tokens * group),
    };
}

KOKUBAN_INLINE float* out_row(const AttentionArgs& args, int64_t request, int64_t kv_head, int64_t token,
                              int64_t row) {
    const int64_t group = args.num_query_heads / args.layout.num_kv_heads;
    const int64_t t = args.batch.query_start[request] + token + row / group;
    return args.out.data + t * args.out.stride + (kv_head * group + row % group) * args.layout.head_dim;
}

template <typename Dtype>
void attend_item(const AttentionArgs& args, const AttentionItem& item, float* scratch) {
    const Rows rows = rows_of(args, item);
    const int64_t stride = state_floats(rows.head_dim), all = rows.count * stride;
    float* known = scratch;
    float* next = known + all;
    Work<Dtype> work(rows, next + all);
    memset(known, 0, static_cast<size_t>(all) * sizeof(float));
    const auto tiles_at = [&](int split) {
        const int64_t base = static_cast<int64_t>(split) * kSplit;
        const Range keys = split < item.end_split ? rows.visible(0, rows.count - 1, base) : Range{0, 0};
        return find_tiles<Dtype>(args, item.request, item.kv_head, base, keys);
    };
    auto tiles = tiles_at(item.first_split);
    for (int split = item.first_split; split < item.end_split; ++split) {
        const int64_t base = static_cast<int64_t>(split) * kSplit;
        float* states = item.partial < 0 ? next : args.partials + item.partial + (split - item.first_split) * all;
        const auto following = tiles_at(split + 1);
        work.attend_split(base, tiles, following, args.scale, args.softcap, states);
        tiles = following;
        if (item.partial >= 0) continue;
        for (int row = 0; row < rows.count; ++row)
            join(known + row * stride, next + row * stride, rows.head_dim);
    }
    if (item.partial >= 0) return;
    for (int row = 0; row < rows.count; ++row)
        write_out(known + row * stride, rows.head_dim,
                  out_row(args, item.request, item.kv_head, item.token, row));
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
    const int64_t head_dim = args.layout.head_dim, stride = state_floats(head_dim);
    const int64_t rows = item.num_tokens * (args.num_query_heads / args.layout.num_kv_heads);
    for (int64_t row = 0; row < rows; ++row) {
        const float* partial = args.partials + item.partial + row * stride;
        memset(scratch, 0, static_cast<size_t>(stride) * sizeof(float));
        for (int split = 0; split < item.num_splits; ++split)
            join(scratch, partial + split * rows * stride, head_dim);
        write_out(scratch, head_dim, out_row(args, item.request, item.kv_head, item.token, row));
    }
}

}  // namespace

const kokuban::AttentionKernels kokuban::KOKUBAN_VARIANT{attend, merge};
