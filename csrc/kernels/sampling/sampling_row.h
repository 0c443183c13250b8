// How one request's next token is chosen, and what that depends on so far.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

namespace kokuban {

// The distinct tokens of a request and how often its output holds each. Adding a token takes
// constant time on average.
class TokenCounts {
   public:
    struct Entry {
        int32_t id;
        int32_t in_output;  // 0: only the prompt holds it
    };

    void add_prompt_token(int32_t id) { entry(id); }
    void add_output_token(int32_t id) { ++entry(id).in_output; }
    const std::vector<Entry>& entries() const { return entries_; }

   private:
    Entry& entry(int32_t id) {
        const auto [where, is_new] = index_.try_emplace(id, entries_.size());
        if (is_new) entries_.push_back({id, 0});
        return entries_[where->second];
    }

    std::vector<Entry> entries_;
    std::unordered_map<int32_t, size_t> index_;
};

struct LogitBias {
    int32_t id;
    float bias;
};

// One row of a batch. Parameters mean what core.SamplingParams says; a value is off when it is the
// default here. Ids outside the vocabulary have no effect.
struct SamplingRow {
    double temperature = 0.0;  // 0: greedy
    int64_t top_k = 0;         // 0 or less: all
    double top_p = 1.0;
    double min_p = 0.0;
    float repetition_penalty = 1.0f;
    float presence_penalty = 0.0f;
    float frequency_penalty = 0.0f;
    uint64_t seed = 0;
    uint32_t choice = 0;
    int64_t min_tokens = 0;
    int32_t logprobs = -1;  // how many most likely tokens to report; below 0: no logprobs at all
    std::vector<int32_t> end_ids;
    std::vector<LogitBias> biases;

    int64_t num_output = 0;  // output tokens so far: the position of the next one
    TokenCounts counts;      // filled only if a penalty needs it

    bool repeats() const { return repetition_penalty != 1.0f; }
    bool penalises() const {
        return repeats() || presence_penalty != 0.0f || frequency_penalty != 0.0f;
    }
    bool greedy() const { return temperature == 0.0 || top_k == 1; }

    void add_prompt_token(int32_t id) {
        if (repeats()) counts.add_prompt_token(id);
    }
    void add_output_token(int32_t id) {
        ++num_output;
        if (penalises()) counts.add_output_token(id);
    }
};

}  // namespace kokuban
