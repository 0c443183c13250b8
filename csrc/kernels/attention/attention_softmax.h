// One row's scores in one split: scaled, capped, masked, and turned into what V is weighed with.
// Included by attention_impl.h.

namespace {

constexpr float kLog2E = 1.44269504088896341f;

// The lanes of x whose key is in `keys`, and `other` in the rest of the tile at key `at`.
KOKUBAN_INLINE F32 only_visible(F32 x, F32 other, Range keys, int at) {
    if (at + kLanes > keys.end) x = f_first_n(x, other, keys.end - at);
    if (at < keys.begin) x = f_first_n(other, x, keys.begin - at);
    return x;
}

// Calls f(tile, whole) for each tile of `keys`, where whole.value tells whether all its keys are among them.
template <typename Function>
KOKUBAN_INLINE void each_tile(Range keys, Function f) {
    const Range range = tiles_of(keys);
    int tile = range.begin;
    if (keys.begin % kLanes) f(tile++, Count<false>{});
    for (; tile < keys.end / kLanes; ++tile) f(tile, Count<true>{});
    if (tile < range.end) f(tile, Count<false>{});
}

// What a tile's raw scores are multiplied by, and what its p are.
template <typename Dtype>
KOKUBAN_INLINE F32 score_factor(const Tiles<Dtype>& tiles, int tile, F32 scale) {
    if constexpr (Dtype::kScaled) return f_mul(f_load(tiles.k.scales[tile]), scale);
    return scale;
}
template <typename Dtype>
KOKUBAN_INLINE F32 weight_of(const Tiles<Dtype>& tiles, int tile, F32 p) {
    if constexpr (Dtype::kScaled) return f_mul(p, f_mul(f_load(tiles.v.scales[tile]), f_set1(Dtype::kUnit)));
    return p;
}

// Turns one row's raw scores into p, one tile after another, and gives m and l: take(tile, p), where p is
// 0 for keys that the row does not see. Scores and m are in units of ln 2: p = 2^(s - m). A score that is
// not finite makes l NaN: 2^-infinity and a soft-cap would hide it.
template <typename Dtype, typename Take>
KOKUBAN_INLINE void soften(float* scores, Range keys, const Tiles<Dtype>& tiles, float scale, float softcap,
                           float* m, float* l, Take take) {
    const F32 scales = f_set1(softcap > 0.0f ? scale : scale * kLog2E), caps = f_set1(softcap);
    const F32 capped = f_set1(softcap * kLog2E), lowest = f_set1(-__builtin_inff());
    F32 largest = lowest, poison = f_zero();
    each_tile(keys, [&](int tile, auto whole) __attribute__((always_inline)) {
        const int at = tile * kLanes;
        F32 s = f_mul(f_load(scores + at), score_factor(tiles, tile, scales)), finite = f_mul(s, f_zero());
        if (softcap > 0.0f) s = f_mul(capped, f_tanh(f_div(s, caps)));
        if constexpr (!whole.value) {
            finite = only_visible(finite, f_zero(), keys, at);
            s = only_visible(s, lowest, keys, at);
        }
        poison = f_add(poison, finite);
        largest = f_max(largest, s);
        f_store(scores + at, s);
    });
    *m = f_reduce_max(largest);
    const F32 shift = f_set1(*m);
    F32 sums = f_zero();
    each_tile(keys, [&](int tile, auto whole) __attribute__((always_inline)) {
        const int at = tile * kLanes;
        F32 p = f_exp2_below(f_sub(f_load(scores + at), shift));
        if constexpr (!whole.value) p = only_visible(p, f_zero(), keys, at);
        sums = f_add(sums, p);
        take(tile, p);
    });
    *l = f_reduce_add(sums) + f_reduce_add(poison);
}

}  // namespace
