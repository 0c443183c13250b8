// Attention over int8 K and V in integers: rows against tiles of K and V, as attention_scores.h and
// attention_values.h do it for floats. Included by attention_impl.h.
//
// K is stored rotated, and so are queries. Queries and weights become 16-bit integers, so that every
// product of a pair and every sum is exact: 512 elements times 127 times 32767 stay below 2^31, and so
// do the 256 keys of a split. Integer sums have no order, so blocks of any shape give the same bits,
// and a hidden key has weight 0.

namespace {

struct Int8 {
    using Element = int8_t;
    static constexpr bool kScaled = true;
    static constexpr float kUnit = 1.0f;
};

constexpr float kMost16 = 32767.0f;
constexpr float kLeastScale = 0x1p-126f;  // its inverse is finite

// Two neighbouring 16-bit integers, in every lane.
KOKUBAN_INLINE I32 set_pair(const int16_t* p) {
    int32_t both;
    memcpy(&both, p, sizeof both);
    return i_set1(both);
}

KOKUBAN_INLINE void store_i16(int16_t* p, F32 x) { i_store_u16(reinterpret_cast<uint16_t*>(p), i_from_f(x)); }

// What makes 16-bit integers of values whose largest size is given.
KOKUBAN_INLINE float scale_16(float largest) {
    const float scale = largest / kMost16;
    return scale < kLeastScale ? kLeastScale : scale;
}

// Rotates and quantises one row of queries and gives its scale: NaN when an element is not finite. Of
// each four elements the even two come first, then the odd two, as i_even_bytes and i_odd_bytes take K
// apart.
KOKUBAN_INLINE float quantize_query(const float* query, int64_t head_dim, int16_t* out) {
    float q[kokuban::kKvMaxHeadDim];
    rotate(query, head_dim, q);
    F32 largest = f_zero(), poison = f_zero();
    for (int64_t d = 0; d < head_dim; d += kLanes) {
        const int n = head_dim - d < kLanes ? static_cast<int>(head_dim - d) : kLanes;
        const F32 x = f_load_n(q + d, n);
        largest = f_max(largest, f_abs(x));
        poison = f_add(poison, f_mul(x, f_zero()));
    }
    const float scale = scale_16(f_reduce_max(largest));
    const F32 inverse = f_set1(1.0f / scale);
    for (int64_t d = 0; d < head_dim; d += kLanes) {
        const int n = head_dim - d < kLanes ? static_cast<int>(head_dim - d) : kLanes;
        int16_t some[kLanes];
        store_i16(some, f_mul(f_load_n(q + d, n), inverse));
        for (int i = 0; i < n; ++i) out[d + i] = some[(i & ~3) | (i & 1) << 1 | (i & 2) >> 1];
    }
    return scale * static_cast<float>(rotation_size(head_dim)) + f_reduce_add(poison);
}

// scores[row][16 tile + lane] = Q_row · k_lane for kCount rows and kTiles tiles.
template <int kCount, int kTiles>
KOKUBAN_INLINE void dot_int8(const int16_t* const* q, const int8_t* const* k, const int8_t* const* asked,
                             int64_t head_dim, float* scores) {
    I32 sums[kCount][kTiles];
    const int16_t* rows[kCount];
    const int8_t *tiles[kTiles], *ahead[kTiles];
    for (int row = 0; row < kCount; ++row) rows[row] = q[row];
    for (int tile = 0; tile < kTiles; ++tile) {
        tiles[tile] = k[tile];
        ahead[tile] = asked[tile];
        for (int row = 0; row < kCount; ++row) sums[row][tile] = i_zero();
    }
    for (int64_t d = 0; d < head_dim; d += 4) {
        for (int tile = 0; tile < kTiles; ++tile) {
            ask(ahead[tile], d * kLanes);
            const auto* fours = reinterpret_cast<const int32_t*>(tiles[tile] + d * kLanes);
            const I32 even = i_even_bytes(i_load(fours));
            for (int row = 0; row < kCount; ++row)
                sums[row][tile] = i_dot_pairs(set_pair(rows[row] + d), even, sums[row][tile]);
            const I32 odd = i_odd_bytes(i_load(anew(fours)));
            for (int row = 0; row < kCount; ++row)
                sums[row][tile] = i_dot_pairs(set_pair(rows[row] + d + 2), odd, sums[row][tile]);
            if constexpr (kTiles > 1)
                for (int row = 0; row < kCount; ++row) rows[row] = anew(rows[row]);
        }
    }
    for (int row = 0; row < kCount; ++row)
        for (int tile = 0; tile < kTiles; ++tile)
            f_store(scores + row * kSplit + tile * kLanes, f_from_i(sums[row][tile]));
}

// The weights of one row in one split: floats as they come, then 16-bit integers.
class Weights {
   public:
    Weights(float* values, Range keys) : values_(values), keys_(keys), largest_(f_zero()), poison_(f_zero()) {}

    // A key that the row does not see has weight 0, whatever its scale.
    inline __attribute__((always_inline)) void take(int tile, F32 w) {
        w = only_visible(w, f_zero(), keys_, tile * kLanes);
        largest_ = f_max(largest_, w);
        poison_ = f_add(poison_, f_mul(w, f_zero()));
        f_store(values_ + tile * kLanes, w);
    }

    // Quantises what was taken, with 0 in the other tiles of `range`, and gives the scale: NaN when a
    // weight is not finite.
    inline __attribute__((always_inline)) float quantize(Range range, int16_t* out) const {
        const Range seen = tiles_of(keys_);
        const float scale = scale_16(f_reduce_max(largest_));
        const F32 inverse = f_set1(1.0f / scale);
        for (int tile = range.begin; tile < range.end; ++tile) {
            const bool taken = !keys_.empty() && tile >= seen.begin && tile < seen.end;
            const F32 w = taken ? f_mul(f_load(values_ + tile * kLanes), inverse) : f_zero();
            store_i16(out + tile * kLanes, w);
        }
        return scale + f_reduce_add(poison_);
    }

   private:
    float* values_;
    Range keys_;
    F32 largest_, poison_;
};

// sums[row][d + …] += sum over the keys of `tiles` of W v, for kCount rows and 16 kVectors columns from
// d on. In the tail (kVectors = 1) only the columns that are left are read.
template <int kCount, int kVectors, bool kTail>
KOKUBAN_INLINE void weigh_int8_block(const int16_t* weights, const int8_t* const* v, const int8_t* const* asked,
                                     Range tiles, int64_t head_dim, int64_t d, int32_t* sums, int64_t stride) {
    I32 all[kCount][kVectors];
    for (int row = 0; row < kCount; ++row)
        for (int i = 0; i < kVectors; ++i) all[row][i] = i_load(sums + row * stride + d + i * kLanes);
    for (int tile = tiles.begin; tile < tiles.end; ++tile) {
        const int8_t* values = v[tile] + 2 * d;
        const int64_t ahead = asked[tile] - v[tile];
        for (int key = tile * kLanes; key < (tile + 1) * kLanes; key += 2, values += 2 * head_dim) {
            for (int byte = 0; byte < 2 * kVectors * kLanes; byte += 64) ask(values + ahead, byte);
            for (int i = 0; i < kVectors; ++i) {
                I32 pairs;
                if constexpr (kTail) {
                    int8_t some[2 * kLanes] = {};
                    memcpy(some, values, static_cast<size_t>(2 * (head_dim - d)));
                    pairs = i_pairs_from_i8(some);
                } else {
                    pairs = i_pairs_from_i8(values + 2 * i * kLanes);
                }
                for (int row = 0; row < kCount; ++row)
                    all[row][i] = i_dot_pairs(set_pair(weights + row * kSplit + key), pairs, all[row][i]);
                if constexpr (kVectors > 1) weights = anew(weights);
            }
        }
    }
    for (int row = 0; row < kCount; ++row)
        for (int i = 0; i < kVectors; ++i) i_store(sums + row * stride + d + i * kLanes, all[row][i]);
}

template <int kCount, int kVectors>
KOKUBAN_INLINE void weigh_int8_columns(const int16_t* weights, const int8_t* const* v,
                                       const int8_t* const* asked, Range tiles, int64_t head_dim, int64_t d,
                                       int32_t* sums, int64_t stride) {
    for (; d + kVectors * kLanes <= head_dim; d += kVectors * kLanes)
        weigh_int8_block<kCount, kVectors, false>(weights, v, asked, tiles, head_dim, d, sums, stride);
    if constexpr (kVectors > 1) {
        weigh_int8_columns<kCount, kVectors / 2>(weights, v, asked, tiles, head_dim, d, sums, stride);
    } else if (d < head_dim) {
        weigh_int8_block<kCount, 1, true>(weights, v, asked, tiles, head_dim, d, sums, stride);
    }
}

// What one item needs beside its states, and its splits.
template <>
class Work<Int8> {
   public:
    Work(const Rows& rows, float* scratch)
        : rows_(rows),
          stride_(padded(rows.head_dim)),
          scores_(scratch),
          query_scales_(scores_ + rows.count * kSplit),
          weight_scales_(query_scales_ + rows.count),
          sums_(reinterpret_cast<int32_t*>(weight_scales_ + rows.count)),
          weights_(reinterpret_cast<int16_t*>(sums_ + rows.count * stride_)),
          queries_(weights_ + rows.count * kSplit) {
        for (int row = 0; row < rows.count; ++row)
            query_scales_[row] = quantize_query(rows.queries[row], rows.head_dim, queries_ + row * stride_);
    }

    // One split for all rows: fills the states.
    void attend_split(const Tiles<Int8>& tiles, const Tiles<Int8>& next, float scale, float softcap,
                      float* states) {
        score_split(tiles);
        const int64_t columns = stride_, stride = state_floats(rows_.head_dim);
        for (int row = 0; row < rows_.count; ++row) {
            float *state = states + row * stride, *scores = scores_ + row * kSplit;
            const Range keys = rows_.seen[row];
            Weights weights(scores, keys);
            state[columns] = state[columns + 1] = 0.0f;
            if (!keys.empty()) {
                soften(scores, keys, tiles, scale * query_scales_[row], softcap, state + columns,
                       state + columns + 1, [&](int tile, F32 p) __attribute__((always_inline)) {
                           weights.take(tile, weight_of(tiles, tile, p));
                       });
            }
            weight_scales_[row] = weights.quantize(tiles.range, weights_ + row * kSplit);
        }
        weigh_split(tiles, next);
        for (int row = 0; row < rows_.count; ++row)
            for (int64_t d = 0; d < columns; d += kLanes)
                f_store(states + row * stride + d,
                        f_mul(f_from_i(i_load(sums_ + row * stride_ + d)), f_set1(weight_scales_[row])));
    }

   private:
    void score_split(const Tiles<Int8>& tiles) {
        for (int at = tiles.range.begin; at < tiles.range.end; at += kPiece) {
            const Range piece = cut(tiles.range, {at, at + kPiece});
            const auto asked = ask_for<Int8>(tiles.v, tiles.range, tiles.k, piece);
            each_row_block(rows_.count, [&](int first, int count) {
                const int16_t* q[kRows];
                for (int row = 0; row < count; ++row) q[row] = queries_ + (first + row) * stride_;
                score_rows(q, count, tiles.k.at, first == 0 ? asked.at : tiles.k.at, piece, scores_ + first * kSplit);
            });
        }
    }

    void score_rows(const int16_t* const* q, int count, const int8_t* const* k, const int8_t* const* asked,
                    Range piece, float* scores) {
        with_count<kRows>(count, [&](auto constant) __attribute__((always_inline)) {
            constexpr int kCount = decltype(constant)::value, kTiles = accumulators_for(kCount);
            int tile = piece.begin;
            for (; tile + kTiles <= piece.end; tile += kTiles)
                dot_int8<kCount, kTiles>(q, k + tile, asked + tile, rows_.head_dim, scores + tile * kLanes);
            for (; tile < piece.end; ++tile)
                dot_int8<kCount, 1>(q, k + tile, asked + tile, rows_.head_dim, scores + tile * kLanes);
        });
    }

    void weigh_split(const Tiles<Int8>& tiles, const Tiles<Int8>& next) {
        memset(sums_, 0, static_cast<size_t>(rows_.count * stride_) * sizeof *sums_);
        for (int at = tiles.range.begin; at < tiles.range.end; at += kPiece) {
            const Range piece = cut(tiles.range, {at, at + kPiece});
            const auto asked = ask_for<Int8>(next.k, next.range, tiles.v, piece);
            each_row_block(rows_.count, [&](int first, int count) {
                with_count<kRows>(count, [&](auto constant) __attribute__((always_inline)) {
                    constexpr int kCount = decltype(constant)::value;
                    weigh_int8_columns<kCount, accumulators_for(kCount)>(
                        weights_ + first * kSplit, tiles.v.at, first == 0 ? asked.at : tiles.v.at, piece,
                        rows_.head_dim, 0, sums_ + first * stride_, stride_);
                });
            });
        }
    }

    const Rows& rows_;
    int64_t stride_;
    float* scores_;         // [rows][256]
    float* query_scales_;   // [rows]
    float* weight_scales_;  // [rows], of the split in hand
    int32_t* sums_;         // [rows][padded(D)], of the split in hand
    int16_t* weights_;      // [rows][256]
    int16_t* queries_;      // [rows][padded(D)]
};

}  // namespace
