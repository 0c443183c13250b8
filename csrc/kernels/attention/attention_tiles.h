// Rows, and tiles of K and V: what the inner loops of attention are about. Included by attention_impl.h,
// which says how they are used.

namespace {

constexpr int kSplit = static_cast<int>(kokuban::kSplit);
constexpr int kSplitTiles = kSplit / kLanes;
constexpr int kPiece = 4;  // tiles taken at a time by all rows: they stay in the first two cache levels
constexpr int kRows = KOKUBAN_ROWS;
constexpr int kFewRows = 2 * kRows;  // up to here converting a tile beforehand costs more than twice

// How the elements of each dtype become floats. Those of a scaled dtype are kUnit times too small,
// and each token's scale comes in where its score and its weight are made.
struct Bf16 {
    using Element = uint16_t;
    static constexpr bool kAsks = true;
    static constexpr int kPair = 2;
    static constexpr bool kScaled = false;
    KOKUBAN_INLINE F32 load(const Element* p) { return f_load_bf16(p); }
};
struct Fp16 {
    using Element = uint16_t;
    static constexpr bool kAsks = true;
    static constexpr int kPair = 1;
    static constexpr bool kScaled = false;
    KOKUBAN_INLINE F32 load(const Element* p) { return f_load_f16(p); }
};
struct Fp32 {
    using Element = float;
    static constexpr bool kAsks = true;
    static constexpr int kPair = 1;
    static constexpr bool kScaled = false;
    KOKUBAN_INLINE F32 load(const Element* p) { return f_load(p); }
};
struct Fp8E4m3 {
    using Element = uint8_t;
    static constexpr bool kAsks = true;
    static constexpr int kPair = 1;
    static constexpr bool kScaled = true;
    static constexpr float kUnit = 256.0f;
    KOKUBAN_INLINE F32 load(const Element* p) { return f_load_e4m3(p); }
};

// Tiles of K that were made float32.
struct Converted {
    using Element = float;
    static constexpr int kPair = 1;
    static constexpr bool kScaled = false;
    static constexpr bool kAsks = false;
    KOKUBAN_INLINE F32 load(const Element* p) { return f_load(p); }
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

// The same pointer, of which the compiler knows nothing: what was loaded through it is loaded again, and not
// kept in a register that a sum needs. With sixteen registers, sums that are spilled wait for their own stores.
template <typename T>
KOKUBAN_INLINE T* anew(T* p) {
    asm("" : "+r"(p));
    return p;
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

KOKUBAN_INLINE Range tiles_of(Range keys) {
    return {keys.begin / kLanes, (keys.end + kLanes - 1) / kLanes};
}

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

}  // namespace
