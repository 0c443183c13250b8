// Rows against tiles of K and V: the inner loops of attention, over sixteen lanes. Included by
// attention_impl.h, which says how they are used.

namespace {

constexpr int kSplit = static_cast<int>(kokuban::kSplit);
constexpr int kSplitTiles = kSplit / kLanes;
constexpr int kPiece = 4;  // tiles converted or asked for at a time: they stay in the first two cache levels
constexpr int kRows = KOKUBAN_ROWS;
constexpr int kFewRows = 2 * kRows;  // up to here converting a tile beforehand costs more than twice

// How the elements of each dtype become floats. Those of a scaled dtype are kUnit times too small,
// and each token's scale comes in where its score and its weight are made.
struct Bf16 {
    using Element = uint16_t;
    static constexpr int kPair = 2;
    static constexpr bool kScaled = false;
    KOKUBAN_INLINE F32 load(const Element* p) { return f_load_bf16(p); }
};
struct Fp16 {
    using Element = uint16_t;
    static constexpr int kPair = 1;
    static constexpr bool kScaled = false;
    KOKUBAN_INLINE F32 load(const Element* p) { return f_load_f16(p); }
};
struct Fp32 {
    using Element = float;
    static constexpr int kPair = 1;
    static constexpr bool kScaled = false;
    KOKUBAN_INLINE F32 load(const Element* p) { return f_load(p); }
};
struct Fp8E4m3 {
    using Element = uint8_t;
    static constexpr int kPair = 1;
    static constexpr bool kScaled = true;
    static constexpr float kUnit = 256.0f;
    KOKUBAN_INLINE F32 load(const Element* p) { return f_load_e4m3(p); }
};

// The first n elements, without reading those after them; the other lanes are 0.
template <typename Dtype>
KOKUBAN_INLINE F32 load_first(const typename Dtype::Element* p, int n) {
    typename Dtype::Element some[kLanes] = {};
    memcpy(some, p, static_cast<size_t>(n) * sizeof some[0]);
    return Dtype::load(some);
}

// Asks for memory that is read soon. Blocks are scattered, and one head of a block is 1 to 4 KiB:
// hardware sees the end of each too late.
KOKUBAN_INLINE void prefetch(const void* p, int64_t bytes) {
    const char* at = static_cast<const char*>(p);
    for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(at + i, 0, 2);
}

KOKUBAN_INLINE int64_t padded(int64_t dim) { return (dim + kLanes - 1) / kLanes * kLanes; }

// What is known of a row after some splits: o[padded(D)], m, l, padding. l = 0: it saw no key.
KOKUBAN_INLINE int64_t state_floats(int64_t head_dim) { return padded(head_dim) + kLanes; }

// Keys [begin, end) that a row sees, inside one split.
struct Range {
    int begin, end;
    bool empty() const { return begin >= end; }
};

KOKUBAN_INLINE Range cut(Range keys, Range by) {
    return {keys.begin > by.begin ? keys.begin : by.begin, keys.end < by.end ? keys.end : by.end};
}

KOKUBAN_INLINE int clamp_to_split(int64_t key) {
    return key < 0 ? 0 : key > kSplit ? kSplit : static_cast<int>(key);
}

// The rows of an item: row i is query head i % group of its KV head, token i / group.
struct Rows {
    const float* q;
    int64_t q_stride, head_dim, group, window;
    int64_t position;  // of the item's first token
    int count;

    const float* query(int row) const { return q + row / group * q_stride + row % group * head_dim; }
    Range visible(int row, int64_t base) const {
        const int64_t end = position + row / group + 1;
        const int64_t begin = window > 0 && end > window ? end - window : 0;
        return {clamp_to_split(begin - base), clamp_to_split(end - base)};
    }
    // Keys that any of rows [first, last] sees: the ranges move up with the rows.
    Range visible(int first, int last, int64_t base) const {
        return {visible(first, base).begin, visible(last, base).end};
    }
};

// The tiles of K, or of V, in one split, and the scales of their sixteen tokens where there are any.
template <typename Dtype>
struct Side {
    const typename Dtype::Element* at[kSplitTiles];
    const float* scales[Dtype::kScaled ? kSplitTiles : 1];
};

// Where the tiles of one split lie; those outside `range` are not known.
template <typename Dtype>
struct Tiles {
    Range range;
    Side<Dtype> k, v;
};

template <typename Dtype>
KOKUBAN_INLINE void prefetch_tiles(const Side<Dtype>& side, Range range, int64_t head_dim) {
    for (int tile = range.begin; tile < range.end; ++tile) {
        prefetch(side.at[tile], kLanes * head_dim * static_cast<int64_t>(sizeof *side.at[0]));
        if constexpr (Dtype::kScaled) __builtin_prefetch(side.scales[tile], 0, 2);
    }
}

// Calls f with the number of rows as a compile-time constant.
template <int kCount>
struct Count {
    static constexpr int value = kCount;
};
template <int kMax, typename Function>
KOKUBAN_INLINE void with_count(int count, Function f) {
    if constexpr (kMax > 1) {
        if (count < kMax) return with_count<kMax - 1>(count, f);
    }
    f(Count<kMax>{});
}

// The largest power of two of accumulators that `rows` rows leave room for.
constexpr int accumulators_for(int rows) {
    int n = 1;
    while (2 * n * rows <= kRows) n *= 2;
    return n;
}

// Splits `rows` into blocks of at most kRows rows, as even as can be: f(first, count).
template <typename Function>
KOKUBAN_INLINE void each_row_block(int rows, Function f) {
    const int blocks = (rows + kRows - 1) / kRows;
    for (int block = 0, first = 0; block < blocks; ++block) {
        const int count = (rows - first + blocks - block - 1) / (blocks - block);
        f(first, count);
        first += count;
    }
}

// scores[row][16 tile + lane] = q_row · k_lane for kCount rows and kTiles tiles.
template <typename Dtype, int kCount, int kTiles>
KOKUBAN_INLINE void dot_block(const float* const* q, const typename Dtype::Element* const* k,
                              int64_t head_dim, float* scores) {
    F32 sums[kCount][kTiles];
    for (int row = 0; row < kCount; ++row)
        for (int tile = 0; tile < kTiles; ++tile) sums[row][tile] = f_zero();
    for (int64_t d = 0; d < head_dim; d += Dtype::kPair) {
        for (int tile = 0; tile < kTiles; ++tile) {
            if constexpr (Dtype::kPair == 1) {
                const F32 keys = Dtype::load(k[tile] + d * kLanes);
                for (int row = 0; row < kCount; ++row)
                    sums[row][tile] = f_fma(f_set1(q[row][d]), keys, sums[row][tile]);
            } else {
                const I32 pairs = i_load(reinterpret_cast<const int32_t*>(k[tile] + d * kLanes));
                const F32 first = f_bf16_first(pairs);
                for (int row = 0; row < kCount; ++row)
                    sums[row][tile] = f_fma(f_set1(q[row][d]), first, sums[row][tile]);
                const F32 second = f_bf16_second(pairs);
                for (int row = 0; row < kCount; ++row)
                    sums[row][tile] = f_fma(f_set1(q[row][d + 1]), second, sums[row][tile]);
            }
        }
    }
    for (int row = 0; row < kCount; ++row)
        for (int tile = 0; tile < kTiles; ++tile)
            f_store(scores + row * kSplit + tile * kLanes, sums[row][tile]);
}

// Scores of rows [first, first + count) against tiles [begin, end).
template <typename Dtype>
KOKUBAN_INLINE void score_rows(const Rows& rows, int first, int count,
                               const typename Dtype::Element* const* k, int begin, int end, float* scores) {
    const float* q[kRows];
    for (int row = 0; row < count; ++row) q[row] = rows.query(first + row);
    float* out = scores + first * kSplit;
    with_count<kRows>(count, [&](auto constant) __attribute__((always_inline)) {
        constexpr int kCount = decltype(constant)::value, kTiles = accumulators_for(kCount);
        int tile = begin;
        for (; tile + kTiles <= end; tile += kTiles)
            dot_block<Dtype, kCount, kTiles>(q, k + tile, rows.head_dim, out + tile * kLanes);
        for (; tile < end; ++tile)
            dot_block<Dtype, kCount, 1>(q, k + tile, rows.head_dim, out + tile * kLanes);
    });
}

KOKUBAN_INLINE Range tiles_of(Range keys) {
    return {keys.begin / kLanes, (keys.end + kLanes - 1) / kLanes};
}

// Scores of few rows, for which reading K is most of the time: V, which is read when the split's
// scores are done, is asked for between them.
template <typename Dtype>
KOKUBAN_INLINE void stream_scores(const Rows& rows, const Tiles<Dtype>& tiles, float* scores) {
    for (int tile = tiles.range.begin; tile < tiles.range.end; tile += kPiece) {
        const Range piece = cut(tiles.range, {tile, tile + kPiece});
        prefetch_tiles(tiles.v, piece, rows.head_dim);
        each_row_block(rows.count, [&](int first, int count) {
            score_rows<Dtype>(rows, first, count, tiles.k.at, piece.begin, piece.end, scores);
        });
    }
}

// A K tile as float32, [D][16].
template <typename Dtype>
KOKUBAN_INLINE void convert_k(const typename Dtype::Element* k, int64_t head_dim, float* out) {
    for (int64_t d = 0; d < head_dim; d += Dtype::kPair) {
        if constexpr (Dtype::kPair == 1) {
            f_store(out + d * kLanes, Dtype::load(k + d * kLanes));
        } else {
            const I32 pairs = i_load(reinterpret_cast<const int32_t*>(k + d * kLanes));
            f_store(out + d * kLanes, f_bf16_first(pairs));
            f_store(out + (d + 1) * kLanes, f_bf16_second(pairs));
        }
    }
}

// Scores of all rows against the keys that they see in one split. With many rows a
// tile is converted once for all of them.
template <typename Dtype>
void score_split(const Rows& rows, int64_t base, const Tiles<Dtype>& tiles, float* converted,
                 float* scores) {
    if (rows.count <= kFewRows) return stream_scores<Dtype>(rows, tiles, scores);
    for (int tile = tiles.range.begin; tile < tiles.range.end; ++tile) {
        convert_k<Dtype>(tiles.k.at[tile], rows.head_dim, converted);
        const float* places[kSplitTiles];
        places[tile] = converted;
        each_row_block(rows.count, [&](int first, int count) {
            const Range seen = tiles_of(rows.visible(first, first + count - 1, base));
            if (tile >= seen.begin && tile < seen.end)
                score_rows<Fp32>(rows, first, count, places, tile, tile + 1, scores);
        });
    }
}

// o[row][d + …] += sum over keys of p v for kCount rows and 16 kVectors columns from d on; with
// lanes < 16 (kVectors = 1) only so many columns are read.
template <typename Dtype, int kCount, int kVectors, bool kTail>
KOKUBAN_INLINE void weigh_block(const float* p, const typename Dtype::Element* const* v, Range keys,
                                int64_t head_dim, int64_t d, float* o, int64_t o_stride) {
    const int lanes = kTail ? static_cast<int>(head_dim - d) : kLanes;
    F32 sums[kCount][kVectors];
    for (int row = 0; row < kCount; ++row)
        for (int i = 0; i < kVectors; ++i) sums[row][i] = f_load(o + row * o_stride + d + i * kLanes);
    for (int key = keys.begin; key < keys.end;) {
        const int tile = key / kLanes, next = (tile + 1) * kLanes, end = next < keys.end ? next : keys.end;
        const typename Dtype::Element* values = v[tile] + (key - tile * kLanes) * head_dim + d;
        for (; key < end; ++key, values += head_dim) {
            for (int i = 0; i < kVectors; ++i) {
                const F32 x = kTail ? load_first<Dtype>(values, lanes) : Dtype::load(values + i * kLanes);
                for (int row = 0; row < kCount; ++row)
                    sums[row][i] = f_fma(f_set1(p[row * kSplit + key]), x, sums[row][i]);
            }
        }
    }
    for (int row = 0; row < kCount; ++row)
        for (int i = 0; i < kVectors; ++i) f_store(o + row * o_stride + d + i * kLanes, sums[row][i]);
}

// The same for all columns: blocks of kVectors vectors, then half as many, down to the tail.
template <typename Dtype, int kCount, int kVectors>
KOKUBAN_INLINE void weigh_columns(const float* p, const typename Dtype::Element* const* v, Range keys,
                                  int64_t head_dim, int64_t d, float* o, int64_t o_stride) {
    for (; d + kVectors * kLanes <= head_dim; d += kVectors * kLanes)
        weigh_block<Dtype, kCount, kVectors, false>(p, v, keys, head_dim, d, o, o_stride);
    if constexpr (kVectors > 1) {
        weigh_columns<Dtype, kCount, kVectors / 2>(p, v, keys, head_dim, d, o, o_stride);
    } else if (d < head_dim) {
        weigh_block<Dtype, kCount, 1, true>(p, v, keys, head_dim, d, o, o_stride);
    }
}

template <typename Dtype>
KOKUBAN_INLINE void weigh_rows(int count, const float* p, const typename Dtype::Element* const* v,
                               Range keys, int64_t head_dim, float* o, int64_t o_stride) {
    if (keys.empty()) return;
    with_count<kRows>(count, [&](auto constant) __attribute__((always_inline)) {
        constexpr int kCount = decltype(constant)::value;
        weigh_columns<Dtype, kCount, accumulators_for(kCount)>(p, v, keys, head_dim, 0, o, o_stride);
    });
}

// Adds V of the keys of `piece` to rows [first, first + count): what all see together, what only
// some see before and after it row by row. Each row still takes its keys in ascending order.
template <typename Dtype>
void weigh_piece(const Rows& rows, int first, int count, int64_t base, Range piece, const float* p,
                 const typename Dtype::Element* const* v, float* o, int64_t o_stride) {
    Range shared = piece;
    for (int row = first; row < first + count; ++row) shared = cut(shared, rows.visible(row, base));
    if (shared.empty()) shared = {piece.end, piece.end};
    const auto each_row = [&](Range part) {
        for (int row = first; row < first + count; ++row)
            weigh_rows<Dtype>(1, p + row * kSplit, v, cut(rows.visible(row, base), part), rows.head_dim,
                              o + row * o_stride, o_stride);
    };
    each_row({piece.begin, shared.begin});
    weigh_rows<Dtype>(count, p + first * kSplit, v, shared, rows.head_dim, o + first * o_stride, o_stride);
    each_row({shared.end, piece.end});
}

// Adds V of one split to all rows. With few rows the next split's K is asked for meanwhile; with many
// V is converted once for all.
template <typename Dtype>
void weigh_split(const Rows& rows, int64_t base, const float* p, const Tiles<Dtype>& tiles,
                 const Tiles<Dtype>& next, float* converted, float* o, int64_t o_stride) {
    const Range keys = rows.visible(0, rows.count - 1, base);
    for (int tile = tiles.range.begin; tile < tiles.range.end; tile += kPiece) {
        const Range piece = cut(keys, {tile * kLanes, (tile + kPiece) * kLanes});
        if (rows.count <= kFewRows) {
            prefetch_tiles(next.k, cut(next.range, {tile, tile + kPiece}), rows.head_dim);
            each_row_block(rows.count, [&](int first, int count) {
                weigh_piece<Dtype>(rows, first, count, base, piece, p, tiles.v.at, o, o_stride);
            });
            continue;
        }
        const float* places[kSplitTiles];
        for (int i = tile; i * kLanes < piece.end; ++i) {
            float* place = converted + (i - tile) * kLanes * rows.head_dim;
            places[i] = place;
            for (int64_t at = 0; at < kLanes * rows.head_dim; at += kLanes)
                f_store(place + at, Dtype::load(tiles.v.at[i] + at));
        }
        each_row_block(rows.count, [&](int first, int count) {
            weigh_piece<Fp32>(rows, first, count, base, piece, p, places, o, o_stride);
        });
    }
}

}  // namespace
