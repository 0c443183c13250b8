// Sampling: one token for each row of logits.
//
//   logits  [rows, vocab] f32, row-major. Of each row the first `valid` are looked at; what lies
//           behind (rows that pad the output matrix) is never sampled and never counted.
//
// In this order:
//   1. penalties: a logit of a token in prompt or output is divided by repetition_penalty if it is
//      above 0, else multiplied; then frequency_penalty times the token's count in the output, and
//      presence_penalty if that is not 0, are subtracted (float32, kept within its finite range)
//   2. logit biases are added
//   3. end tokens are made impossible while fewer than min_tokens were generated
//   4. tokens that the row's mask does not allow are made impossible
//   5. temperature 0, or top_k 1: the largest logit wins, the lowest id among equals
//   6. temperature: y = (logit - largest logit) / temperature, weight e^y
//   7. top_k, the k largest; min_p, weight >= min_p; both keep a prefix of the tokens by descending
//      logit, so that they commute; then top_p, the shortest prefix that holds that share of what
//      the others left. Among equal logits the lower id comes first. top_p is last because its share
//      refers to what may be sampled at all
//   8. the first token in ascending id at which the running sum of weights exceeds u times their
//      sum; u has 53 bits and depends on seed, choice and position alone
//
// Logprobs are those of the model: before 1. A row is a function of its logits, its SamplingRow and
// its mask, the same bits for every instruction set, whatever the batch and the threads.
#pragma once

#include <cstdint>
#include <vector>

#include "common/isa.h"
#include "common/thread_pool.h"
#include "kernels/sampling/sampling_row.h"

namespace kokuban {

enum class RowStatus : int32_t {
    kOk = 0,
    kNotFinite = 1,  // a logit is NaN or +inf
    kNoToken = 2,    // every token is impossible
    kNoMemory = 3,
};

struct LogitsView {
    float* data;
    int64_t rows, vocab, valid;
    float* row(int64_t r) const { return data + r * vocab; }
};

// Which tokens may be sampled, a bit for each: token i of a mask is bit i % 32 of word i / 32.
struct Masks {
    const uint32_t* words = nullptr;
    int64_t width = 0;             // words of one mask; they cover all valid tokens
    const int32_t* of = nullptr;  // the mask of row r; below 0: every token is allowed

    const uint32_t* row(int64_t r) const {
        return of != nullptr && of[r] >= 0 ? words + of[r] * width : nullptr;
    }
};

// Where results go; row r of each. The top arrays are [rows, max_top], best first, and are filled
// up to top_counts[r] (fewer than asked for when fewer are possible).
struct SamplingOutput {
    int32_t* tokens;   // -1 where the status is not kOk
    int32_t* status;   // RowStatus
    float* logprobs;   // natural logarithm; 0 where none were asked for
    int32_t* top_ids;
    float* top_logprobs;
    int32_t* top_counts;
    int64_t max_top;
};

// rows: logits.rows pointers. Logits are changed while a row is worked on and put back at its end.
// Rows are the work items of `pool` (may be null: the caller's thread does all).
void sample_rows(Isa isa, ThreadPool* pool, const LogitsView& logits, const SamplingRow* const* rows,
                 const Masks& masks, const SamplingOutput& output);

// How likely targets[r] is under row r, and the num_top[r] most likely tokens. Changes no logit.
// Targets are below logits.vocab; one from logits.valid on is compared with the sum over the valid
// ones, so that a prompt may hold it. output.tokens repeats the targets.
void score_rows(Isa isa, ThreadPool* pool, const LogitsView& logits, const int32_t* targets,
                const int32_t* num_top, const SamplingOutput& output);

// The ids among which sample_rows would draw for this one row, ascending; empty when the row has an
// error. For tests, and for those who want to see why a token was possible.
std::vector<int32_t> kept_tokens(Isa isa, const LogitsView& logits, const SamplingRow& row);

}  // namespace kokuban
