#include "kernels/sampling/row_worker.h"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>

#include "kernels/sampling/philox.h"

namespace kokuban {
namespace {

// A weight of 1 as a mass. 2^40: a row of 2^23 tokens that all have it still adds up in 64 bits, and
// what is lost below is less than one token in 10^12.
constexpr double kUnitMass = 1099511627776.0;

// ln x for normal x > 0 within 1e-15, relative or absolute; no library decides its last bit.
double natural_log(double x) {
    const uint64_t bits = std::bit_cast<uint64_t>(x);
    int64_t exponent = static_cast<int64_t>(bits >> 52) - 1023;
    double m = std::bit_cast<double>((bits & 0xfffffffffffffull) | 0x3ff0000000000000ull);
    if (m > 1.4142135623730951) {
        m *= 0.5;
        ++exponent;
    }
    // ln m = 2 artanh s with |s| < 0.172: the next term of the series is below 1e-18.
    const double s = (m - 1.0) / (m + 1.0), square = s * s;
    double series = 0.0;
    for (int k = 23; k >= 1; k -= 2) series = series * square + 1.0 / k;
    return static_cast<double>(exponent) * 0.69314718055994530942 + 2.0 * s * series;
}

uint64_t mass_of(float weight) { return static_cast<uint64_t>(static_cast<double>(weight) * kUnitMass); }

// The least mass that is a share of at least top_p, and never none.
uint64_t needed_mass(double top_p, double mass) {
    return std::max<uint64_t>(1, static_cast<uint64_t>(std::ceil(top_p * mass)));
}

uint64_t sum_masses(const std::vector<Candidate>& candidates, size_t count) {
    uint64_t sum = 0;
    for (size_t i = 0; i < count; ++i) sum += candidates[i].mass;
    return sum;
}

bool by_key(const Candidate& a, const Candidate& b) { return a.key < b.key; }

Weighing weighing_of(const SamplingRow& row, float max) {
    // Finite even for the smallest temperatures, so that 0 times it is 0.
    const double inverse = std::min(1.0 / row.temperature, static_cast<double>(FLT_MAX));
    const float floor = row.min_p >= DBL_MIN ? static_cast<float>(natural_log(row.min_p)) : kZeroWeight;
    return {max, static_cast<float>(inverse), std::max(floor, kZeroWeight)};
}

bool top_k_applies(const SamplingRow& row, int64_t count) { return row.top_k > 0 && row.top_k < count; }

}  // namespace

void SamplingScratch::reserve(int64_t count) {
    if (count <= capacity) return;
    const auto blocks = static_cast<size_t>(num_blocks(count)), size = static_cast<size_t>(count);
    capacity = 0;  // stays so if one of these throws
    block_max = std::make_unique_for_overwrite<float[]>(blocks);
    block_sums = std::make_unique_for_overwrite<float[]>(blocks);
    block_order = std::make_unique_for_overwrite<float[]>(blocks);
    values = std::make_unique_for_overwrite<float[]>(size);
    weights = std::make_unique_for_overwrite<float[]>(size);
    ids = std::make_unique_for_overwrite<int32_t[]>(size);
    capacity = count;
}

RowWorker::RowWorker(const SamplingPasses& passes, SamplingScratch& scratch, float* logits,
                     int64_t count)
    : passes_(passes), scratch_(scratch), logits_(logits), count_(count) {
    scratch_.reserve(count);
}

RowStatus RowWorker::scan() {
    if (!passes_.scan(logits_, count_, scratch_.block_max.get(), &max_)) return RowStatus::kNotFinite;
    return max_ == -INFINITY ? RowStatus::kNoToken : RowStatus::kOk;
}

int32_t RowWorker::argmax() const {
    const float* block_max = scratch_.block_max.get();
    const int64_t block = std::find(block_max, block_max + num_blocks(count_), max_) - block_max;
    return static_cast<int32_t>(std::find(logits_ + block * kBlock, logits_ + count_, max_) - logits_);
}

double RowWorker::sum_weights(const Weighing& weighing) {
    float* sums = scratch_.block_sums.get();
    passes_.weight_sums(logits_, count_, scratch_.block_max.get(), weighing, sums);
    double sum = 0.0;
    for (int64_t b = 0; b < num_blocks(count_); ++b) sum += static_cast<double>(sums[b]);
    return sum;
}

double RowWorker::log_sum() { return natural_log(sum_weights({max_, 1.0f, kZeroWeight})); }

float RowWorker::bound_of_best(int64_t wanted) {
    const int64_t blocks = num_blocks(count_);
    if (wanted > blocks) return -FLT_MAX;
    // Each of the `wanted` largest block maxima is a logit.
    float* order = scratch_.block_order.get();
    std::copy_n(scratch_.block_max.get(), blocks, order);
    std::nth_element(order, order + wanted - 1, order + blocks, std::greater<>());
    return std::max(order[wanted - 1], -FLT_MAX);
}

void RowWorker::collect(float threshold) {
    const int32_t* ids = scratch_.ids.get();
    const float* values = scratch_.values.get();
    const auto found = static_cast<size_t>(passes_.collect(
        logits_, count_, scratch_.block_max.get(), threshold, scratch_.ids.get(), scratch_.values.get()));
    scratch_.candidates.resize(found);
    for (size_t i = 0; i < found; ++i)
        scratch_.candidates[i] = {best_first_key(values[i], ids[i]), 0};
}

uint64_t RowWorker::weigh_candidates(const Weighing& weighing) {
    auto& candidates = scratch_.candidates;
    const float* weights = scratch_.weights.get();
    passes_.weights(scratch_.values.get(), static_cast<int64_t>(candidates.size()), weighing,
                    scratch_.weights.get());
    for (size_t i = 0; i < candidates.size(); ++i) candidates[i].mass = mass_of(weights[i]);
    return sum_masses(candidates, candidates.size());
}

std::vector<int32_t> RowWorker::best(int64_t wanted) {
    wanted = std::min(wanted, count_);
    if (wanted <= 0) return {};
    collect(bound_of_best(wanted));
    auto& candidates = scratch_.candidates;
    const size_t found = std::min(static_cast<size_t>(wanted), candidates.size());
    std::partial_sort(candidates.begin(), candidates.begin() + static_cast<ptrdiff_t>(found),
                      candidates.end(), by_key);
    std::vector<int32_t> ids(found);
    for (size_t i = 0; i < found; ++i) ids[i] = id_of_key(candidates[i].key);
    return ids;
}

size_t RowWorker::keep_top_k(size_t k, const Weighing& weighing) {
    collect(bound_of_best(static_cast<int64_t>(k)));
    weigh_candidates(weighing);
    auto& candidates = scratch_.candidates;
    if (candidates.size() <= k) return candidates.size();
    std::nth_element(candidates.begin(), candidates.begin() + static_cast<ptrdiff_t>(k) - 1,
                     candidates.end(), by_key);
    return k;
}

size_t RowWorker::keep_top_p(double top_p, const Weighing& weighing) {
    const uint64_t need = needed_mass(top_p, sum_weights(weighing) * kUnitMass);
    // Deeper and deeper below the largest logit until the mass is there. Most of it usually lies
    // within the first depth, e^-8 of the largest weight.
    for (const float depth : {8.0f, 16.0f, 32.0f, INFINITY}) {
        collect(std::max(max_ - depth / weighing.inv_temperature, -FLT_MAX));
        if (weigh_candidates(weighing) >= need) break;
    }
    return select_mass(scratch_.candidates.data(), scratch_.candidates.size(), need);
}

size_t RowWorker::filter(const SamplingRow& row, const Weighing& weighing) {
    if (!top_k_applies(row, count_)) return keep_top_p(row.top_p, weighing);
    const size_t kept = keep_top_k(static_cast<size_t>(row.top_k), weighing);
    if (row.top_p >= 1.0) return kept;
    const auto mass = static_cast<double>(sum_masses(scratch_.candidates, kept));
    return select_mass(scratch_.candidates.data(), kept, needed_mass(row.top_p, mass));
}

int32_t RowWorker::draw_from_candidates(size_t count, uint64_t bits53) {
    auto& candidates = scratch_.candidates;
    const uint64_t mass = sum_masses(candidates, count);
    const auto target = static_cast<uint64_t>((static_cast<unsigned __int128>(bits53) * mass) >> 53);
    for (size_t i = 0; i < count; ++i) candidates[i].key &= 0xffffffffu;  // by id alone
    return id_of_key(candidates[select_mass(candidates.data(), count, target + 1) - 1].key);
}

int32_t RowWorker::draw_from_all(const Weighing& weighing, double u) {
    const double target = u * sum_weights(weighing);
    const float* sums = scratch_.block_sums.get();
    double sum = 0.0;
    int64_t block = 0;  // the last one with weight, if rounding lets no sum exceed the target
    for (int64_t b = 0; b < num_blocks(count_); ++b) {
        if (!(sums[b] > 0.0f)) continue;
        block = b;
        if (sum + static_cast<double>(sums[b]) > target) break;
        sum += static_cast<double>(sums[b]);
    }
    const int64_t begin = block * kBlock, length = std::min(kBlock, count_ - begin);
    float* weights = scratch_.weights.get();
    passes_.weights(logits_ + begin, length, weighing, weights);
    int64_t token = 0;  // likewise
    for (int64_t i = 0; i < length; ++i) {
        if (!(weights[i] > 0.0f)) continue;
        token = i;
        sum += static_cast<double>(weights[i]);
        if (sum > target) break;
    }
    return static_cast<int32_t>(begin + token);
}

int32_t RowWorker::draw(const SamplingRow& row) {
    if (row.greedy()) return argmax();
    const Weighing weighing = weighing_of(row, max_);
    const uint64_t bits = random_bits53(row.seed, row.choice, static_cast<uint64_t>(row.num_output));
    if (row.top_p >= 1.0 && !top_k_applies(row, count_))
        return draw_from_all(weighing, static_cast<double>(bits) * 0x1p-53);
    return draw_from_candidates(filter(row, weighing), bits);
}

std::vector<int32_t> RowWorker::kept(const SamplingRow& row) {
    if (row.greedy()) return {argmax()};
    const Weighing weighing = weighing_of(row, max_);
    std::vector<int32_t> ids;
    if (row.top_p >= 1.0 && !top_k_applies(row, count_)) {
        passes_.weights(logits_, count_, weighing, scratch_.weights.get());
        for (int64_t i = 0; i < count_; ++i)
            if (scratch_.weights[static_cast<size_t>(i)] > 0.0f) ids.push_back(static_cast<int32_t>(i));
        return ids;
    }
    const size_t count = filter(row, weighing);
    for (size_t i = 0; i < count; ++i)
        if (scratch_.candidates[i].mass) ids.push_back(id_of_key(scratch_.candidates[i].key));
    std::sort(ids.begin(), ids.end());
    return ids;
}

}  // namespace kokuban
