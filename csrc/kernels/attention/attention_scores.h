// Rows against tiles of K: q · k of each. Included by attention_impl.h.

namespace {

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
#pragma GCC unroll 4  // the end of a short loop is guessed wrong
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
                const F32 second = f_bf16_second(i_load(anew(pairs)));
                for (int row = 0; row < kCount; ++row)
                    sums[row][tile] = f_fma(f_set1(rows[row][d + 1]), second, sums[row][tile]);
            }
            if constexpr (kTiles > 1)
                for (int row = 0; row < kCount; ++row) rows[row] = anew(rows[row]);
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

// Asks for the queries of a block of rows that comes next: all of them are more than the first cache level holds.
KOKUBAN_INLINE void ask_for_queries(const Rows& rows, Range block) {
    for (int row = block.begin; row < block.end && row < rows.count; ++row)
        for (int64_t d = 0; d < rows.head_dim; d += kLanes) __builtin_prefetch(rows.queries[row] + d);
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
            ask_for_queries(rows, {first + count, first + count + kRows});
            score_rows<Converted>(rows, first, count, places, places, seen, scores);
        });
    }
}

}  // namespace
