// One row's scores in one split: scaled, capped, masked, and turned into what V is weighed with.
// Included by attention_impl.h.

namespace {

// The lanes of x whose key is in `keys`, and `other` in the rest of the tile at key `at`.
KOKUBAN_INLINE F32 only_visible(F32 x, F32 other, Range keys, int at) {
    if (at + kLanes > keys.end) x = f_first_n(x, other, keys.end - at);
    if (at < keys.begin) x = f_first_n(other, x, keys.begin - at);
    return x;
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
// 0 for keys that the row does not see. A score that is not finite makes l NaN: e^-infinity and a
// soft-cap would hide it.
template <typename Dtype, typename Take>
KOKUBAN_INLINE void soften(float* scores, Range keys, const Tiles<Dtype>& tiles, float scale, float softcap,
                           float* m, float* l, Take take) {
    const Range range = tiles_of(keys);
    const F32 scales = f_set1(scale), caps = f_set1(softcap), lowest = f_set1(-__builtin_inff());
    F32 largest = lowest, poison = f_zero();
    for (int tile = range.begin; tile < range.end; ++tile) {
        const int at = tile * kLanes;
        F32 s = f_mul(f_load(scores + at), score_factor(tiles, tile, scales));
        poison = f_add(poison, only_visible(f_mul(s, f_zero()), f_zero(), keys, at));
        if (softcap > 0.0f) s = f_mul(caps, f_tanh(f_div(s, caps)));
        s = only_visible(s, lowest, keys, at);
        largest = f_max(largest, s);
        f_store(scores + at, s);
    }
    *m = f_reduce_max(largest);
    const F32 shift = f_set1(*m);
    F32 sums = f_zero();
    for (int tile = range.begin; tile < range.end; ++tile) {
        const int at = tile * kLanes;
        const F32 p = only_visible(f_exp(f_sub(f_load(scores + at), shift)), f_zero(), keys, at);
        sums = f_add(sums, p);
        take(tile, p);
    }
    *l = f_reduce_add(sums) + f_reduce_add(poison);
}

}  // namespace
