// Rows against tiles of K and V: the inner loops of attention, over sixteen lanes. Included by
// attention_impl.h, which says how they are used.

namespace {

constexpr int kSplit = static_cast<int>(kokuban::kSplit);
constexpr int kSplitTiles = kSplit / kLanes;
constexpr int kPiece = 4;  // tiles taken at a time by all rows: they stay in the first two cache levels
constexpr int kRows = KOKUBAN_ROWS;
constexpr int kFewRows = 2 * kRows;  // up to here converting a tile beforehand costs more than twice
constexpr int64_t kPanel = kPiece * kLanes * kLanes + kLanes;  // floats from a panel of V to the next

// How the elements of each dtype become floats. Those of a scaled dtype are kUnit times too small,
// and each token's scale comes in where its score and its weight are made.
//
// Of V, key_stride is from a key to the next inside a tile, panel_stride from sixteen columns to the next.
struct Raw {
    static constexpr bool kAsks = true;
    KOKUBAN_INLINE int64_t columns(int64_t head_dim) { return head_dim; }
    KOKUBAN_INLINE int64_t key_stride(int64_t head_dim) { return head_dim; }
    static constexpr int64_t panel_stride = kLanes;
};
struct Bf16 : Raw {
    using Element = uint16_t;
    static constexpr int kPair = 2;
    static constexpr bool kScaled = false;
    KOKUBAN_INLINE F32 load(const Element* p) { return f_load_bf16(p); }
};
struct Fp16 : Raw {
    using Element = uint16_t;
    static constexpr int kPair = 1;
    static constexpr bool kScaled = false;
    KOKUBAN_INLINE F32 load(const Element* p) { return f_load_f16(p); }
};
struct Fp32 : Raw {
    using Element = float;
    static constexpr int kPair = 1;
    static constexpr bool kScaled = false;
    KOKUBAN_INLINE F32 load(const Element* p) { return f_load(p); }
};
struct Fp8E4m3 : Raw {
    using Element = uint8_t;
    static constexpr int kPair = 1;
    static constexpr bool kScaled = true;
    static constexpr float kUnit = 256.0f;
    KOKUBAN_INLINE F32 load(const Element* p) { return f_load_e4m3(p); }
};

// Tiles that were made float32: K as it was, V in panels of sixteen columns, [D / 16][4 tiles][16 keys][16],
// the last one filled with zeros. What lies beside each other is used together: with D = 256 rows of V
// would all fall into the same few sets of the first cache level.
struct Converted {
    using Element = float;
    static constexpr int kPair = 1;
    static constexpr bool kScaled = false;
    static constexpr bool kAsks = false;
    KOKUBAN_INLINE F32 load(const Element* p) { return f_load(p); }
    KOKUBAN_INLINE int64_t columns(int64_t head_dim) { return (head_dim + kLanes - 1) / kLanes * kLanes; }
    KOKUBAN_INLINE int64_t key_stride(int64_t) { return kLanes; }
    static constexpr int64_t panel_stride = kPanel;
};

// The first n elements, without reading those after them; the other lanes are 0.
template <typename Dtype>
KOKUBAN_INLINE F32 load_first(const typename Dtype::Element* p, int n) {
    typename Dtype::Element some[kLanes] = {};
    memcpy(some, p, static_cast<size_t>(n) * sizeof some[0]);
    return Dtype::load(some);
}

// Asks for a line of memory that is read soon. Blocks are scattered, and one head of a block is 1 to 4 KiB:
// hardware sees the end of each too late. While a tile of K is read, the tile of V at the same keys is
// asked for, line by line; while V is read, the next split's K. Asked for all at once they would fill the
// queue of misses, and what is needed now would wait behind them.
KOKUBAN_INLINE void ask(const void* tile, int64_t byte) { __builtin_prefetch(static_cast<const char*>(tile) + byte, 0, 2); }

// What lies in memory is loaded again after this, and not kept in a register that a sum needs: with sixteen
// registers, sums that are spilled wait for their own stores.
KOKUBAN_INLINE void forget_memory() { asm volatile("" ::: "memory"); }

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

// One token of an item, with the query heads of its KV head.
struct Token {
    const float* q;
    float* out;
    int64_t position;
};

// The rows of an item: row i is query head i % group of its KV head, token i / group. Either the tokens follow
// each other in a request, or every row sees all keys of the item.
struct Rows {
    int64_t head_dim, group, window;
    int count;
    const float** queries;  // [count]
    Range* seen;            // [count]: keys of the split in hand, moving up with the rows

    // Keys that any of rows [first, last] sees.
    Range seen_by(int first, int last) const { return {seen[first].begin, seen[last].end}; }
    Range seen_by_any() const { return seen_by(0, count - 1); }
};

// Keys of the split at `base` that the row at `position` sees.
KOKUBAN_INLINE Range visible(int64_t position, int64_t window, int64_t base) {
    const int64_t end = position + 1, begin = window > 0 && end > window ? end - window : 0;
    return {clamp_to_split(begin - base), clamp_to_split(end - base)};
}

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

// What is asked for while the tiles in hand are read: those of `side` at the same places, where it has them.
template <typename Element>
struct Asked {
    const Element* at[kSplitTiles];
};

template <typename Dtype>
KOKUBAN_INLINE Asked<typename Dtype::Element> ask_for(const Side<Dtype>& side, Range range, const Side<Dtype>& in_hand,
                                                      Range piece) {
    Asked<typename Dtype::Element> asked;
    for (int tile = piece.begin; tile < piece.end; ++tile) {
        const bool known = tile >= range.begin && tile < range.end;
        asked.at[tile] = known ? side.at[tile] : in_hand.at[tile];
        if constexpr (Dtype::kScaled) ask(known ? side.scales[tile] : in_hand.scales[tile], 0);
    }
    return asked;
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
                              const typename Dtype::Element* const* asked, int64_t head_dim, float* scores) {
    constexpr int64_t kStep = kLanes * sizeof(typename Dtype::Element);  // bytes of one d
    using Element = typename Dtype::Element;
    F32 sums[kCount][kTiles];
    const float* rows[kCount];
    const Element *tiles[kTiles], *ahead[kTiles];
    for (int row = 0; row < kCount; ++row) rows[row] = q[row];
    for (int tile = 0; tile < kTiles; ++tile) {
        tiles[tile] = k[tile];
        ahead[tile] = asked[tile];
        for (int row = 0; row < kCount; ++row) sums[row][tile] = f_zero();
    }
    for (int64_t d = 0; d < head_dim; d += Dtype::kPair) {
        for (int tile = 0; tile < kTiles; ++tile) {
            if constexpr (Dtype::kAsks) {
                if (d * kStep % 64 == 0) ask(ahead[tile], d * kStep);
            }
            if constexpr (Dtype::kPair == 1) {
                const F32 keys = Dtype::load(tiles[tile] + d * kLanes);
                for (int row = 0; row < kCount; ++row)
                    sums[row][tile] = f_fma(f_set1(rows[row][d]), keys, sums[row][tile]);
            } else {
                const auto* pairs = reinterpret_cast<const int32_t*>(tiles[tile] + d * kLanes);
                const F32 first = f_bf16_first(i_load(pairs));
                for (int row = 0; row < kCount; ++row)
                    sums[row][tile] = f_fma(f_set1(rows[row][d]), first, sums[row][tile]);
                forget_memory();
                const F32 second = f_bf16_second(i_load(pairs));
                for (int row = 0; row < kCount; ++row)
                    sums[row][tile] = f_fma(f_set1(rows[row][d + 1]), second, sums[row][tile]);
            }
            if constexpr (kTiles > 1) forget_memory();
        }
    }
    for (int row = 0; row < kCount; ++row)
        for (int tile = 0; tile < kTiles; ++tile)
            f_store(scores + row * kSplit + tile * kLanes, sums[row][tile]);
}

// Scores of rows [first, first + count) against some tiles.
template <typename Dtype>
KOKUBAN_INLINE void score_rows(const Rows& rows, int first, int count, const typename Dtype::Element* const* k,
                               const typename Dtype::Element* const* asked, Range tiles, float* scores) {
    const float* const* q = rows.queries + first;
    float* out = scores + first * kSplit;
    with_count<kRows>(count, [&](auto constant) __attribute__((always_inline)) {
        constexpr int kCount = decltype(constant)::value, kTiles = accumulators_for(kCount);
        int tile = tiles.begin;
        for (; tile + kTiles <= tiles.end; tile += kTiles)
            dot_block<Dtype, kCount, kTiles>(q, k + tile, asked + tile, rows.head_dim, out + tile * kLanes);
        for (; tile < tiles.end; ++tile)
            dot_block<Dtype, kCount, 1>(q, k + tile, asked + tile, rows.head_dim, out + tile * kLanes);
    });
}

KOKUBAN_INLINE Range tiles_of(Range keys) {
    return {keys.begin / kLanes, (keys.end + kLanes - 1) / kLanes};
}

// Scores of few rows: K is read as it lies, by the first block of rows from memory.
template <typename Dtype>
KOKUBAN_INLINE void stream_scores(const Rows& rows, const Tiles<Dtype>& tiles, float* scores) {
    for (int tile = tiles.range.begin; tile < tiles.range.end; tile += kPiece) {
        const Range piece = cut(tiles.range, {tile, tile + kPiece});
        const auto asked = ask_for<Dtype>(tiles.v, tiles.range, tiles.k, piece);
        each_row_block(rows.count, [&](int first, int count) {
            score_rows<Dtype>(rows, first, count, tiles.k.at, first == 0 ? asked.at : tiles.k.at, piece, scores);
        });
    }
}

// A K tile as float32, [D][16].
template <typename Dtype>
KOKUBAN_INLINE void convert_k(const typename Dtype::Element* k, const typename Dtype::Element* asked,
                              int64_t head_dim, float* out) {
    constexpr int64_t kStep = kLanes * sizeof(typename Dtype::Element);
    for (int64_t d = 0; d < head_dim; d += Dtype::kPair) {
        if (d * kStep % 64 == 0) ask(asked, d * kStep);
        if constexpr (Dtype::kPair == 1) {
            f_store(out + d * kLanes, Dtype::load(k + d * kLanes));
        } else {
            const I32 pairs = i_load(reinterpret_cast<const int32_t*>(k + d * kLanes));
            f_store(out + d * kLanes, f_bf16_first(pairs));
            f_store(out + (d + 1) * kLanes, f_bf16_second(pairs));
        }
    }
}

// A V tile as float32, in panels.
template <typename Dtype>
KOKUBAN_INLINE void convert_v(const typename Dtype::Element* v, const typename Dtype::Element* asked,
                              int64_t head_dim, float* out) {
    for (int64_t key = 0; key < kLanes; ++key, v += head_dim, asked += head_dim, out += kLanes) {
        float* panel = out;
        int64_t d = 0;
        for (; d + kLanes <= head_dim; d += kLanes, panel += kPanel) {
            if (d * sizeof(*v) % 64 == 0) ask(asked + d, 0);
            f_store(panel, Dtype::load(v + d));
        }
        if (d < head_dim) f_store(panel, load_first<Dtype>(v + d, static_cast<int>(head_dim - d)));
    }
}

// Scores of all rows against the keys that they see in one split. With many rows some tiles, about 16 KiB,
// are converted at once for all of them.
template <typename Dtype>
void score_split(const Rows& rows, const Tiles<Dtype>& tiles, float* converted, float* scores) {
    if (rows.count <= kFewRows) return stream_scores<Dtype>(rows, tiles, scores);
    const int64_t fit = 256 / rows.head_dim;
    const int step = fit < 1 ? 1 : fit > kPiece ? kPiece : static_cast<int>(fit);
    for (int tile = tiles.range.begin; tile < tiles.range.end; tile += step) {
        const Range piece = cut(tiles.range, {tile, tile + step});
        const auto asked = ask_for<Dtype>(tiles.v, tiles.range, tiles.k, piece);
        const float* places[kSplitTiles];
        for (int i = piece.begin; i < piece.end; ++i) {
            float* place = converted + (i - tile) * kLanes * rows.head_dim;
            places[i] = place;
            convert_k<Dtype>(tiles.k.at[i], asked.at[i], rows.head_dim, place);
        }
        each_row_block(rows.count, [&](int first, int count) {
            const Range seen = cut(piece, tiles_of(rows.seen_by(first, first + count - 1)));
            score_rows<Converted>(rows, first, count, places, places, seen, scores);
        });
    }
}

// o[row][d + …] += sum over keys of p v for kCount rows and 16 kVectors columns from d on; with
// lanes < 16 (kVectors = 1) only so many columns are read.
template <typename Dtype, int kCount, int kVectors, bool kTail>
KOKUBAN_INLINE void weigh_block(const float* p, const typename Dtype::Element* const* v,
                                const typename Dtype::Element* const* asked, Range keys, int64_t head_dim,
                                int64_t d, float* o, int64_t o_stride) {
    using Element = typename Dtype::Element;
    constexpr int64_t kBytes = kVectors * kLanes * sizeof(Element);  // of a key that are read here
    const int64_t stride = Dtype::key_stride(head_dim), column = d / kLanes * Dtype::panel_stride;
    const int lanes = kTail ? static_cast<int>(head_dim - d) : kLanes;
    F32 sums[kCount][kVectors];
    for (int row = 0; row < kCount; ++row)
        for (int i = 0; i < kVectors; ++i) sums[row][i] = f_load(o + row * o_stride + d + i * kLanes);
    for (int key = keys.begin; key < keys.end;) {
        const int tile = key / kLanes, next = (tile + 1) * kLanes, end = next < keys.end ? next : keys.end;
        const Element* values = v[tile] + (key - tile * kLanes) * stride + column;
        const int64_t ahead = asked[tile] - v[tile];
        for (; key < end; ++key, values += stride) {
            if constexpr (Dtype::kAsks) {
                for (int64_t byte = 0; byte < kBytes; byte += 64) ask(values + ahead, byte);
            }
            for (int i = 0; i < kVectors; ++i) {
                const F32 x = kTail ? load_first<Dtype>(values, lanes)
                                    : Dtype::load(values + i * Dtype::panel_stride);
                for (int row = 0; row < kCount; ++row)
                    sums[row][i] = f_fma(f_set1(p[row * kSplit + key]), x, sums[row][i]);
                if constexpr (kVectors > 1) forget_memory();
            }
        }
    }
    for (int row = 0; row < kCount; ++row)
        for (int i = 0; i < kVectors; ++i) f_store(o + row * o_stride + d + i * kLanes, sums[row][i]);
}

// The same for all columns: blocks of kVectors vectors, then half as many, down to the tail.
template <typename Dtype, int kCount, int kVectors>
KOKUBAN_INLINE void weigh_columns(const float* p, const typename Dtype::Element* const* v,
                                  const typename Dtype::Element* const* asked, Range keys, int64_t head_dim,
                                  int64_t d, float* o, int64_t o_stride) {
    const int64_t columns = Dtype::columns(head_dim);
    for (; d + kVectors * kLanes <= columns; d += kVectors * kLanes)
        weigh_block<Dtype, kCount, kVectors, false>(p, v, asked, keys, head_dim, d, o, o_stride);
    if constexpr (kVectors > 1) {
        weigh_columns<Dtype, kCount, kVectors / 2>(p, v, asked, keys, head_dim, d, o, o_stride);
    } else if (d < columns) {
        weigh_block<Dtype, kCount, 1, true>(p, v, asked, keys, head_dim, d, o, o_stride);
    }
}

template <typename Dtype>
KOKUBAN_INLINE void weigh_rows(int count, const float* p, const typename Dtype::Element* const* v,
                               const typename Dtype::Element* const* asked, Range keys, int64_t head_dim,
                               float* o, int64_t o_stride) {
    if (keys.empty()) return;
    with_count<kRows>(count, [&](auto constant) __attribute__((always_inline)) {
        constexpr int kCount = decltype(constant)::value;
        weigh_columns<Dtype, kCount, accumulators_for(kCount)>(p, v, asked, keys, head_dim, 0, o, o_stride);
    });
}

// Adds V of the keys of `piece` to rows [first, first + count): what all see together, what only
// some see before and after it row by row. Each row still takes its keys in ascending order.
template <typename Dtype>
void weigh_piece(const Rows& rows, int first, int count, Range piece, const float* p,
                 const typename Dtype::Element* const* v, const typename Dtype::Element* const* asked, float* o,
                 int64_t o_stride) {
    Range shared = piece;
    for (int row = first; row < first + count; ++row) shared = cut(shared, rows.seen[row]);
    if (shared.empty()) shared = {piece.end, piece.end};
    const auto each_row = [&](Range part) {
        if (part.empty()) return;
        for (int row = first; row < first + count; ++row)
            weigh_rows<Dtype>(1, p + row * kSplit, v, asked, cut(rows.seen[row], part), rows.head_dim,
                              o + row * o_stride, o_stride);
    };
    each_row({piece.begin, shared.begin});
    weigh_rows<Dtype>(count, p + first * kSplit, v, asked, shared, rows.head_dim, o + first * o_stride, o_stride);
    each_row({shared.end, piece.end});
}

// Adds V of one split to all rows. With many rows it is converted once for all.
template <typename Dtype>
void weigh_split(const Rows& rows, const float* p, const Tiles<Dtype>& tiles, const Tiles<Dtype>& next,
                 float* converted, float* o, int64_t o_stride) {
    const Range keys = rows.seen_by_any();
    for (int tile = tiles.range.begin; tile < tiles.range.end; tile += kPiece) {
        const Range some = cut(tiles.range, {tile, tile + kPiece});
        const Range piece = cut(keys, {some.begin * kLanes, some.end * kLanes});
        const auto asked = ask_for<Dtype>(next.k, next.range, tiles.v, some);
        if (rows.count <= kFewRows) {
            each_row_block(rows.count, [&](int first, int count) {
                weigh_piece<Dtype>(rows, first, count, piece, p, tiles.v.at, first == 0 ? asked.at : tiles.v.at, o,
                                   o_stride);
            });
            continue;
        }
        const float* places[kSplitTiles];
        for (int i = some.begin; i < some.end; ++i) {
            float* place = converted + (i - tile) * kLanes * kLanes;
            places[i] = place;
            convert_v<Dtype>(tiles.v.at[i], asked.at[i], rows.head_dim, place);
        }
        each_row_block(rows.count, [&](int first, int count) {
            weigh_piece<Converted>(rows, first, count, piece, p, places, places, o, o_stride);
        });
    }
}

}  // namespace
