#include "kernels/sampling/sampling.h"

#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <stdexcept>

#include "bindings/bindings.h"
#include "kernels/sampling/philox.h"

namespace kokuban {
namespace {

using Ints = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// 2^22 tokens of full weight add up in 64 bits with a margin (row_worker.cpp, kUnitMass).
constexpr int64_t kMaxVocab = int64_t{1} << 22;

LogitsView view(const Array<float, 2>& logits, int64_t valid) {
    const LogitsView result{logits.data(), static_cast<int64_t>(logits.shape(0)),
                            static_cast<int64_t>(logits.shape(1)), valid};
    if (valid < 1 || valid > result.vocab || valid > kMaxVocab)
        throw std::invalid_argument("valid_vocab is not between 1 and the width of the logits (at most 2^22)");
    return result;
}

// Where the results of a call go: arrays of the caller.
struct Results {
    Array<int32_t, 1> tokens, status;
    Array<float, 1> logprobs;
    Array<int32_t, 2> top_ids;
    Array<float, 2> top_logprobs;
    Array<int32_t, 1> top_counts;

    SamplingOutput output(int64_t rows) const {
        const auto fits = [&](const auto& array) { return static_cast<int64_t>(array.shape(0)) == rows; };
        if (!fits(tokens) || !fits(status) || !fits(logprobs) || !fits(top_ids) || !fits(top_logprobs) ||
            !fits(top_counts) || top_ids.shape(1) != top_logprobs.shape(1))
            throw std::invalid_argument("an output array has not one row for each row of logits");
        return {tokens.data(),  status.data(),       logprobs.data(),
                top_ids.data(), top_logprobs.data(), top_counts.data(),
                static_cast<int64_t>(top_ids.shape(1))};
    }
};

void init_row(SamplingRow* row, double temperature, int64_t top_k, double top_p, double min_p,
              float repetition_penalty, float presence_penalty, float frequency_penalty, uint64_t seed,
              uint32_t choice, int64_t min_tokens, int32_t logprobs, std::vector<int32_t> end_ids,
              const std::vector<int32_t>& bias_ids, const std::vector<float>& biases,
              const Ints& prompt_ids, const Ints& output_ids) {
    if (bias_ids.size() != biases.size())
        throw std::invalid_argument("bias_ids and biases differ in length");
    new (row) SamplingRow{};
    row->temperature = temperature;
    row->top_k = top_k;
    row->top_p = top_p;
    row->min_p = min_p;
    row->repetition_penalty = repetition_penalty;
    row->presence_penalty = presence_penalty;
    row->frequency_penalty = frequency_penalty;
    row->seed = seed;
    row->choice = choice;
    row->min_tokens = min_tokens;
    row->logprobs = logprobs;
    row->end_ids = std::move(end_ids);
    for (size_t i = 0; i < biases.size(); ++i) row->biases.push_back({bias_ids[i], biases[i]});
    for (size_t i = 0; i < prompt_ids.shape(0); ++i) row->add_prompt_token(prompt_ids.data()[i]);
    for (size_t i = 0; i < output_ids.shape(0); ++i) row->add_output_token(output_ids.data()[i]);
}

using MaskWords = nb::ndarray<const uint32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

Masks masks_of(const std::optional<MaskWords>& words, const std::optional<Ints>& of, const LogitsView& logits) {
    if (!words.has_value() && !of.has_value()) return {};
    if (!words.has_value() || !of.has_value() || static_cast<int64_t>(of->shape(0)) != logits.rows)
        throw std::invalid_argument("there is not one mask for each row of logits, or -1 for none");
    const Masks masks{words->data(), static_cast<int64_t>(words->shape(1)), of->data()};
    if (masks.width < (logits.valid + 31) / 32)
        throw std::invalid_argument("a mask has fewer bits than there are valid tokens");
    for (int64_t r = 0; r < logits.rows; ++r)
        if (masks.of[r] >= static_cast<int64_t>(words->shape(0)))
            throw std::invalid_argument("a row names a mask that is not there");
    return masks;
}

void sample(ThreadPool* pool, const Array<float, 2>& logits, int64_t valid, const nb::list& rows,
            const Results& results, int isa_cap, const std::optional<MaskWords>& mask_words,
            const std::optional<Ints>& mask_of) {
    const LogitsView logits_view = view(logits, valid);
    if (static_cast<int64_t>(rows.size()) != logits_view.rows)
        throw std::invalid_argument("there is not one SamplingRow for each row of logits");
    std::vector<const SamplingRow*> pointers;
    pointers.reserve(rows.size());
    for (const nb::handle row : rows) pointers.push_back(nb::cast<const SamplingRow*>(row, false));
    const Masks masks = masks_of(mask_words, mask_of, logits_view);
    const SamplingOutput output = results.output(logits_view.rows);
    nb::gil_scoped_release release;  // the caller keeps the rows alive
    sample_rows(capped_isa(isa_cap), pool, logits_view, pointers.data(), masks, output);
}

void score(ThreadPool* pool, const Array<float, 2>& logits, int64_t valid, const Ints& targets,
           const Ints& num_top, const Results& results, int isa_cap) {
    const LogitsView logits_view = view(logits, valid);
    const auto rows = static_cast<size_t>(logits_view.rows);
    if (targets.shape(0) != rows || num_top.shape(0) != rows)
        throw std::invalid_argument("there is not one target for each row of logits");
    for (size_t i = 0; i < rows; ++i)
        if (targets.data()[i] < 0 || targets.data()[i] >= logits_view.vocab)
            throw std::invalid_argument("a target is outside the vocabulary");
    const SamplingOutput output = results.output(logits_view.rows);
    nb::gil_scoped_release release;
    score_rows(capped_isa(isa_cap), pool, logits_view, targets.data(), num_top.data(), output);
}

}  // namespace

void bind_sampling(nb::module_& module) {
    nb::class_<SamplingRow>(module, "SamplingRow", "Parameters and history of one request.")
        .def("__init__", &init_row, nb::kw_only(), nb::arg("temperature"), nb::arg("top_k"), nb::arg("top_p"),
             nb::arg("min_p"), nb::arg("repetition_penalty"), nb::arg("presence_penalty"),
             nb::arg("frequency_penalty"), nb::arg("seed"), nb::arg("choice"), nb::arg("min_tokens"),
             nb::arg("logprobs"), nb::arg("end_ids"), nb::arg("bias_ids"), nb::arg("biases"),
             nb::arg("prompt_ids"), nb::arg("output_ids"))
        .def("append", &SamplingRow::add_output_token, nb::arg("token_id"))
        .def_ro("num_output", &SamplingRow::num_output);
    nb::class_<Results>(module, "SamplingResults", "Arrays that sample_rows and score_rows fill.")
        .def("__init__",
             [](Results* results, Array<int32_t, 1> tokens, Array<int32_t, 1> status, Array<float, 1> logprobs,
                Array<int32_t, 2> top_ids, Array<float, 2> top_logprobs, Array<int32_t, 1> top_counts) {
                 new (results) Results{tokens, status, logprobs, top_ids, top_logprobs, top_counts};
             });
    module.def("sample_rows", &sample, nb::arg("pool").none(), nb::arg("logits").noconvert(),
               nb::arg("valid_vocab"), nb::arg("rows"), nb::arg("results"), nb::arg("isa_cap"),
               nb::arg("mask_words") = nb::none(), nb::arg("mask_of") = nb::none());
    module.def("score_rows", &score, nb::arg("pool").none(), nb::arg("logits").noconvert(),
               nb::arg("valid_vocab"), nb::arg("targets"), nb::arg("num_top"), nb::arg("results"),
               nb::arg("isa_cap"));
    module.def(
        "kept_tokens",
        [](const Array<float, 2>& logits, int64_t valid, const SamplingRow& row, int isa_cap) {
            if (logits.shape(0) != 1) throw std::invalid_argument("kept_tokens takes one row of logits");
            return kept_tokens(capped_isa(isa_cap), view(logits, valid), row);
        },
        nb::arg("logits").noconvert(), nb::arg("valid_vocab"), nb::arg("row"), nb::arg("isa_cap"));
    module.def("philox4x32", &philox4x32, nb::arg("counter"), nb::arg("key"));
    module.def("random_bits53", &random_bits53, nb::arg("seed"), nb::arg("choice"), nb::arg("position"));
}

}  // namespace kokuban
