// What one thread does for one row: the passes over its logits, and the memory they need.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/sampling/passes.h"
#include "kernels/sampling/sampling.h"
#include "kernels/sampling/select.h"

namespace kokuban {

// Memory of one thread, kept between rows. Its size follows the largest vocabulary seen.
struct SamplingScratch {
    int64_t capacity = 0;
    std::unique_ptr<float[]> block_max, block_sums, block_order, values, weights;
    std::vector<float> masked;  // empty until a row has a mask
    std::unique_ptr<int32_t[]> ids;
    std::vector<Candidate> candidates;

    void reserve(int64_t count);
};

// The logits of one row and what is known about them.
class RowWorker {
   public:
    RowWorker(const SamplingPasses& passes, SamplingScratch& scratch, float* logits, int64_t count);

    // Looks at all logits. Call it again when they have changed.
    RowStatus scan();
    float max() const { return max_; }
    int32_t argmax() const;

    // ln of the sum of e^(logit - max).
    double log_sum();

    // The ids of the `wanted` largest logits, best first; impossible ones are left out.
    std::vector<int32_t> best(int64_t wanted);

    int32_t draw(const SamplingRow& row);
    std::vector<int32_t> kept(const SamplingRow& row);

    float logit(int32_t id) const { return logits_[id]; }

   private:
    double sum_weights(const Weighing& weighing);
    int32_t draw_from_all(const Weighing& weighing, double u);

    // What top_k and top_p leave: the first of scratch_.candidates, in no order; returns how many.
    size_t filter(const SamplingRow& row, const Weighing& weighing);
    size_t keep_top_k(size_t k, const Weighing& weighing);
    size_t keep_top_p(double top_p, const Weighing& weighing);
    int32_t draw_from_candidates(size_t count, uint64_t bits53);

    // A logit that at least `wanted` are not below, unless there are fewer possible ones.
    float bound_of_best(int64_t wanted);
    // Makes every logit >= threshold a candidate, without mass.
    void collect(float threshold);
    // Gives the collected candidates their masses; returns the sum.
    uint64_t weigh_candidates(const Weighing& weighing);

    const SamplingPasses& passes_;
    SamplingScratch& scratch_;
    float* logits_;
    int64_t count_;
    float max_ = 0.0f;
};

}  // namespace kokuban
