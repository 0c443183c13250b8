// What rows take of V, as their p weigh it. Included by attention_impl.h.

namespace {

// o[row][d + …] += sum over keys of p v for kCount rows and 16 kVectors columns from d on; with
// lanes < 16 (kVectors = 1) only so many columns are read.
template <typename Dtype, int kCount, int kVectors, bool kTail>
KOKUBAN_INLINE void weigh_block(const float* p, const typename Dtype::Element* const* v,
                                const typename Dtype::Element* const* asked, Range keys, int64_t head_dim,
                                int64_t d, float* o, int64_t o_stride) {
    using Element = typename Dtype::Element;
    constexpr int64_t kBytes = kVectors * kLanes * sizeof(Element);  // of a key that are read here
    const int lanes = kTail ? static_cast<int>(head_dim - d) : kLanes;
    F32 sums[kCount][kVectors];
    for (int row = 0; row < kCount; ++row)
        for (int i = 0; i < kVectors; ++i) sums[row][i] = f_load(o + row * o_stride + d + i * kLanes);
    for (int key = keys.begin; key < keys.end;) {
        const int tile = key / kLanes, next = (tile + 1) * kLanes, end = next < keys.end ? next : keys.end;
        const Element* values = v[tile] + (key - tile * kLanes) * head_dim + d;
        const int64_t ahead = asked[tile] - v[tile];
        for (; key < end; ++key, values += head_dim) {
            for (int64_t byte = 0; byte < kBytes; byte += 64) ask(values + ahead, byte);
            for (int i = 0; i < kVectors; ++i) {
                const F32 x = kTail ? load_first<Dtype>(values, lanes) : Dtype::load(values + i * kLanes);
                for (int row = 0; row < kCount; ++row)
                    sums[row][i] = f_fma(f_set1(p[row * kSplit + key]), x, sums[row][i]);
                if constexpr (kVectors > 1) p = anew(p);
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
    for (; d + kVectors * kLanes <= head_dim; d += kVectors * kLanes)
        weigh_block<Dtype, kCount, kVectors, false>(p, v, asked, keys, head_dim, d, o, o_stride);
    if constexpr (kVectors > 1) {
        weigh_columns<Dtype, kCount, kVectors / 2>(p, v, asked, keys, head_dim, d, o, o_stride);
    } else if (d < head_dim) {
        weigh_block<Dtype, kCount, 1, true>(p, v, asked, keys, head_dim, d, o, o_stride);
    }
}

// Calls weigh(first, count, keys) for rows [first, first + count) and the keys of `piece`: what all see
// together, what only some see before and after it row by row. Each row takes its keys in ascending order.
template <typename Function>
KOKUBAN_INLINE void weigh_seen(const Rows& rows, int first, int count, Range piece, Function weigh) {
    Range shared = piece;
    for (int row = first; row < first + count; ++row) shared = cut(shared, rows.seen[row]);
    if (shared.empty()) shared = {piece.end, piece.end};
    const auto each_row = [&](Range part) __attribute__((always_inline)) {
        if (part.empty()) return;
        for (int row = first; row < first + count; ++row) {
            const Range keys = cut(rows.seen[row], part);
            if (!keys.empty()) weigh(row, 1, keys);
        }
    };
    each_row({piece.begin, shared.begin});
    if (!shared.empty()) weigh(first, count, shared);
    each_row({shared.end, piece.end});
}

// Adds V of one split to few rows: V is read as it lies, by the first block of rows from memory.
template <typename Dtype>
KOKUBAN_INLINE void stream_values(const Rows& rows, const float* p, const Tiles<Dtype>& tiles,
                                  const Tiles<Dtype>& next, float* o, int64_t o_stride) {
    const Range all = rows.seen_by_any();
    for (int tile = tiles.range.begin; tile < tiles.range.end; tile += kPiece) {
        const Range some = cut(tiles.range, {tile, tile + kPiece});
        const Range piece = cut(all, {some.begin * kLanes, some.end * kLanes});
        const auto asked = ask_for<Dtype>(next.k, next.range, tiles.v, some);
        each_row_block(rows.count, [&](int block, int block_rows) {
            const auto* const* ahead = block == 0 ? asked.at : tiles.v.at;
            weigh_seen(rows, block, block_rows, piece, [&](int first, int count, Range keys) {
                with_count<kRows>(count, [&](auto constant) __attribute__((always_inline)) {
                    constexpr int kCount = decltype(constant)::value;
                    weigh_columns<Dtype, kCount, accumulators_for(kCount)>(
                        p + first * kSplit, tiles.v.at, ahead, keys, rows.head_dim, 0, o + first * o_stride, o_stride);
                });
            });
        });
    }
}

// Columns d … d + 15 of V of one split as float32, [256][16]; zeros where there are fewer.
template <typename Dtype>
KOKUBAN_INLINE void convert_panel(const Tiles<Dtype>& tiles, const Asked<typename Dtype::Element>& asked,
                                  int64_t head_dim, int64_t d, float* out) {
    using Element = typename Dtype::Element;
    const int lanes = static_cast<int>(head_dim - d < kLanes ? head_dim - d : kLanes);
    for (int tile = tiles.range.begin; tile < tiles.range.end; ++tile) {
        const Element *v = tiles.v.at[tile] + d, *ahead = asked.at[tile] + d;
        float* panel = out + tile * kLanes * kLanes;
        for (int key = 0; key < kLanes; ++key, v += head_dim, ahead += head_dim, panel += kLanes) {
            if (d * sizeof(Element) % 64 == 0) ask(ahead, 0);
            f_store(panel, lanes < kLanes ? load_first<Dtype>(v, lanes) : Dtype::load(v));
        }
    }
}

// o[row][…] += sum over keys of p v for kCount rows and the columns of a panel.
template <int kCount>
KOKUBAN_INLINE void weigh_panel(const float* p, const float* panel, Range keys, float* o, int64_t o_stride) {
    F32 sums[kCount];
    for (int row = 0; row < kCount; ++row) sums[row] = f_load(o + row * o_stride);
#pragma GCC unroll 4
    for (int key = keys.begin; key < keys.end; ++key) {
        const F32 x = f_load(panel + key * kLanes);
        for (int row = 0; row < kCount; ++row) sums[row] = f_fma(f_set1(p[row * kSplit + key]), x, sums[row]);
    }
    for (int row = 0; row < kCount; ++row) f_store(o + row * o_stride, sums[row]);
}

// Adds V of one split to all rows. With many rows V is converted once for all, sixteen columns at a time:
// 16 KiB that stay in the first cache level while all rows take them, each with sums that stay in registers.
template <typename Dtype>
void weigh_split(const Rows& rows, const float* p, const Tiles<Dtype>& tiles, const Tiles<Dtype>& next,
                 float* panel, float* o, int64_t o_stride) {
    if (rows.count <= kFewRows) return stream_values<Dtype>(rows, p, tiles, next, o, o_stride);
    const Range all = rows.seen_by_any();
    const auto asked = ask_for<Dtype>(next.k, next.range, tiles.v, tiles.range);
    for (int64_t d = 0; d < rows.head_dim; d += kLanes) {
        convert_panel<Dtype>(tiles, asked, rows.head_dim, d, panel);
        each_row_block(rows.count, [&](int block, int block_rows) {
            weigh_seen(rows, block, block_rows, all, [&](int first, int count, Range keys) {
                with_count<kRows>(count, [&](auto constant) __attribute__((always_inline)) {
                    weigh_panel<decltype(constant)::value>(p + first * kSplit, panel, keys, o + first * o_stride + d,
                                                           o_stride);
                });
            });
        });
    }
}

}  // namespace
