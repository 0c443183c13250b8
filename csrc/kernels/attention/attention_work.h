// What one item needs beside its states, and its splits, in floats. Included by attention_impl.h.

namespace {

template <typename Dtype>
class Work {
   public:
    Work(const Rows& rows, float* scratch)
        : rows_(rows), scores_(scratch), converted_(scratch + rows.count * kSplit) {}

    // One split for all rows: fills the states.
    void attend_split(const Tiles<Dtype>& tiles, const Tiles<Dtype>& next, float scale, float softcap,
                      float* states) {
        const int64_t stride = state_floats(rows_.head_dim), columns = padded(rows_.head_dim);
        if constexpr (Dtype::kScaled) scale *= Dtype::kUnit;
        score_split<Dtype>(rows_, tiles, converted_, scores_);
        for (int row = 0; row < rows_.count; ++row) {
            float* state = states + row * stride;
            memset(state, 0, static_cast<size_t>(stride) * sizeof(float));
            const Range keys = rows_.seen[row];
            if (keys.empty()) continue;
            float* scores = scores_ + row * kSplit;
            soften(scores, keys, tiles, scale, softcap, state + columns, state + columns + 1,
                   [&](int tile, F32 p) __attribute__((always_inline)) {
                       f_store(scores + tile * kLanes, weight_of(tiles, tile, p));
                   });
        }
        weigh_split<Dtype>(rows_, scores_, tiles, next, converted_, states, stride);
    }

   private:
    const Rows& rows_;
    float* scores_;     // [rows][256]
    float* converted_;  // some tiles of K, or a panel of V, as float32
};

}  // namespace
