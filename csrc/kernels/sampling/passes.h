// The passes over a row of logits that sampling is made of, one set for each instruction set.
//
//   x          [count] f32, the logits of one row, any alignment; -inf marks an impossible token
//   block_max  [blocks] f32, the largest logit of each block of kBlock (the last may be shorter)
//   weight     of a token: y = (x - max) * inv_temperature, then e^y where y >= floor, else 0
//
// All sets give the same bits: a block's weights are added lane by lane in ascending order, then
// over the lanes in one fixed tree. Nothing is allocated, no thread is started.
#pragma once

#include <stdint.h>

namespace kokuban {

// 128: a vocabulary of 49,152 has 384 block maxima, enough to bound the 384th largest logit, and
// the reduction at the end of a block costs less than its eight loads.
constexpr int64_t kBlock = 128;

constexpr int64_t num_blocks(int64_t count) { return (count + kBlock - 1) / kBlock; }

// How a logit becomes a weight.
struct Weighing {
    float max;
    float inv_temperature;
    float floor;  // >= kZeroWeight
};

// Below this y, e^y is no normal float any more; such a token has weight 0.
constexpr float kZeroWeight = -87.0f;

struct SamplingPasses {
    // Fills block_max and the largest logit of all. Returns whether no logit is NaN or +inf.
    bool (*scan)(const float* x, int64_t count, float* block_max, float* max);

    // sums[b] = the sum of the weights of block b.
    void (*weight_sums)(const float* x, int64_t count, const float* block_max, Weighing weighing,
                        float* sums);

    // out[i] = the weight of x[i].
    void (*weights)(const float* x, int64_t count, Weighing weighing, float* out);

    // Writes the ids of all logits >= threshold, ascending, with their logits. Returns how many.
    // threshold is finite; ids and values have room for count.
    int64_t (*collect)(const float* x, int64_t count, const float* block_max, float threshold,
                       int32_t* ids, float* values);

    // out[i] = x[i] where bit i % 32 of allowed[i / 32] is set, else -inf. No word is read that has
    // no bit below count.
    void (*mask)(const float* x, int64_t count, const uint32_t* allowed, float* out);
};

extern const SamplingPasses kSamplingPassesScalar;
extern const SamplingPasses kSamplingPassesAvx2;
extern const SamplingPasses kSamplingPassesAvx512;

}  // namespace kokuban
