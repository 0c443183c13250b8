#include "kernels/sampling/sampling.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <new>

#include "common/variants.h"
#include "kernels/sampling/row_worker.h"

namespace kokuban {
namespace {

// Changes the logits of one row as its request asks, and puts them back at the end of its life.
class Adjustment {
   public:
    Adjustment(const SamplingRow& row, float* logits, int64_t valid) : logits_(logits), valid_(valid) {
        penalise(row);
        for (const auto& [id, bias] : row.biases) change(id, [&](float x) { return x + bias; });
        if (row.num_output >= row.min_tokens) return;
        for (const int32_t id : row.end_ids) change(id, [](float) { return -INFINITY; });
    }
    ~Adjustment() {
        for (auto saved = saved_.rbegin(); saved != saved_.rend(); ++saved)
            logits_[saved->id] = saved->logit;
    }
    Adjustment(const Adjustment&) = delete;
    Adjustment& operator=(const Adjustment&) = delete;

    bool changed() const { return !saved_.empty(); }

   private:
    struct Saved {
        int32_t id;
        float logit;
    };

    void penalise(const SamplingRow& row) {
        saved_.reserve(row.counts.entries().size() + row.biases.size() + row.end_ids.size());
        for (const auto& [id, in_output] : row.counts.entries()) {
            change(id, [&](float x) {
                if (row.repeats())
                    x = x > 0.0f ? x / row.repetition_penalty : x * row.repetition_penalty;
                x = std::clamp(x, -FLT_MAX, FLT_MAX);
                if (!in_output) return x;
                x -= row.frequency_penalty * static_cast<float>(in_output);
                x -= row.presence_penalty;
                return std::clamp(x, -FLT_MAX, FLT_MAX);
            });
        }
    }

    // Impossible tokens stay so. Finite results stay finite: an infinite one would be an error.
    template <typename Function>
    void change(int32_t id, Function&& changed_logit) {
        if (id < 0 || id >= valid_ || logits_[id] == -INFINITY) return;
        saved_.push_back({id, logits_[id]});
        logits_[id] = changed_logit(logits_[id]);
    }

    float* logits_;
    int64_t valid_;
    std::vector<Saved> saved_;  // in the order of the changes; takes no memory without any
};

const SamplingPasses& passes_for(Isa isa) {
    return choose(isa, kSamplingPassesScalar, kSamplingPassesAvx2, kSamplingPassesAvx512);
}

SamplingScratch& thread_scratch() {
    thread_local SamplingScratch scratch;
    return scratch;
}

void write_top(RowWorker& worker, int64_t wanted, double offset, const SamplingOutput& output, int64_t r) {
    const std::vector<int32_t> ids = worker.best(std::min(wanted, output.max_top));
    for (size_t i = 0; i < ids.size(); ++i) {
        const auto at = static_cast<size_t>(r * output.max_top) + i;
        output.top_ids[at] = ids[i];
        output.top_logprobs[at] = static_cast<float>(static_cast<double>(worker.logit(ids[i])) - offset);
    }
    output.top_counts[r] = static_cast<int32_t>(ids.size());
}

// The token of a row that has been adjusted. What of it is known is not known any more afterwards.
RowStatus draw_row(Isa isa, RowWorker& worker, const SamplingRow& row, const uint32_t* allowed,
                   bool changed, const LogitsView& logits, int64_t r, int32_t* token) {
    if (allowed == nullptr) {
        if (changed)
            if (const RowStatus status = worker.scan(); status != RowStatus::kOk) return status;
        *token = worker.draw(row);
        return RowStatus::kOk;
    }
    const SamplingPasses& passes = passes_for(isa);
    SamplingScratch& scratch = thread_scratch();
    scratch.masked.resize(static_cast<size_t>(logits.valid));
    passes.mask(logits.row(r), logits.valid, allowed, scratch.masked.data());
    RowWorker masked(passes, scratch, scratch.masked.data(), logits.valid);
    if (const RowStatus status = masked.scan(); status != RowStatus::kOk) return status;
    *token = masked.draw(row);
    return RowStatus::kOk;
}

RowStatus sample_row(Isa isa, RowWorker& worker, const SamplingRow& row, const uint32_t* allowed,
                     const LogitsView& logits, const SamplingOutput& output, int64_t r) {
    if (const RowStatus status = worker.scan(); status != RowStatus::kOk) return status;
    double offset = 0.0;
    if (row.logprobs >= 0) {
        offset = static_cast<double>(worker.max()) + worker.log_sum();
        write_top(worker, row.logprobs, offset, output, r);
    }
    int32_t token = -1;
    {
        const Adjustment adjustment(row, logits.row(r), logits.valid);
        const RowStatus status =
            draw_row(isa, worker, row, allowed, adjustment.changed(), logits, r, &token);
        if (status != RowStatus::kOk) return status;
    }
    output.tokens[r] = token;
    if (row.logprobs >= 0)
        output.logprobs[r] = static_cast<float>(static_cast<double>(worker.logit(token)) - offset);
    return RowStatus::kOk;
}

RowStatus score_row(RowWorker& worker, int32_t target, int32_t num_top, const SamplingOutput& output,
                    int64_t r) {
    if (const RowStatus status = worker.scan(); status != RowStatus::kOk) return status;
    // The scan has not seen a target among the padding.
    if (!(worker.logit(target) <= FLT_MAX)) return RowStatus::kNotFinite;
    const double offset = static_cast<double>(worker.max()) + worker.log_sum();
    write_top(worker, num_top, offset, output, r);
    output.tokens[r] = target;
    output.logprobs[r] = static_cast<float>(static_cast<double>(worker.logit(target)) - offset);
    return RowStatus::kOk;
}

// job(worker, r) -> RowStatus for every row; a row that fails leaves nothing but its status.
template <typename Job>
void for_each_row(Isa isa, ThreadPool* pool, const LogitsView& logits, const SamplingOutput& output,
                  Job&& job) {
    const SamplingPasses& passes = passes_for(isa);
    auto one = [&](int64_t r, int) {
        output.tokens[r] = -1;
        output.logprobs[r] = 0.0f;
        output.top_counts[r] = 0;
        RowStatus status = RowStatus::kNoMemory;
        try {
            RowWorker worker(passes, thread_scratch(), logits.row(r), logits.valid);
            status = job(worker, r);
        } catch (const std::bad_alloc&) {
            status = RowStatus::kNoMemory;
        }
        output.status[r] = static_cast<int32_t>(status);
        if (status != RowStatus::kOk) output.top_counts[r] = 0;
    };
    if (pool) {
        pool->run(logits.rows, one);
    } else {
        for (int64_t r = 0; r < logits.rows; ++r) one(r, 0);
    }
}

}  // namespace

void sample_rows(Isa isa, ThreadPool* pool, const LogitsView& logits, const SamplingRow* const* rows,
                 const Masks& masks, const SamplingOutput& output) {
    for_each_row(isa, pool, logits, output, [&](RowWorker& worker, int64_t r) {
        return sample_row(isa, worker, *rows[r], masks.row(r), logits, output, r);
    });
}

void score_rows(Isa isa, ThreadPool* pool, const LogitsView& logits, const int32_t* targets,
                const int32_t* num_top, const SamplingOutput& output) {
    for_each_row(isa, pool, logits, output, [&](RowWorker& worker, int64_t r) {
        return score_row(worker, targets[r], num_top[r], output, r);
    });
}

std::vector<int32_t> kept_tokens(Isa isa, const LogitsView& logits, const SamplingRow& row) {
    RowWorker worker(passes_for(isa), thread_scratch(), logits.row(0), logits.valid);
    if (worker.scan() != RowStatus::kOk) return {};
    const Adjustment adjustment(row, logits.row(0), logits.valid);
    return worker.scan() == RowStatus::kOk ? worker.kept(row) : std::vector<int32_t>{};
}

}  // namespace kokuban
