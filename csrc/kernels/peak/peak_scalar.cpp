#include <string.h>

#include "kernels/peak/peak.h"

namespace kokuban {
namespace {

constexpr int kChains = 32;

double run_fma() {
    volatile float hidden = 1.0f;
    const float one = hidden;
    float acc[kChains] = {};
    for (int round = 0; round < kPeakRounds; ++round) {
        for (int i = 0; i < kChains; ++i) acc[i] = acc[i] * one + one;
    }
    double sum = 0;
    for (const float x : acc) sum += x;
    return sum;
}

double run_int8() {
    int32_t acc[kChains] = {};
    int32_t code = 1, x = 1;
    for (int round = 0; round < kPeakRounds; ++round) {
        for (int i = 0; i < kChains; ++i) {
            asm("" : "+r"(code));  // another code each time: no product can be used twice
            acc[i] += code * x;
        }
    }
    double sum = 0;
    for (const int32_t a : acc) sum += a;
    return sum;
}

uint64_t read(const uint8_t* p, size_t bytes) {
    uint64_t sums[8] = {};
    for (size_t at = 0; at < bytes; at += sizeof(sums)) {
        uint64_t words[8];
        memcpy(words, p + at, sizeof(words));
        for (int i = 0; i < 8; ++i) sums[i] += words[i];
    }
    uint64_t sum = 0;
    for (const uint64_t s : sums) sum += s;
    return sum;
}

constexpr int64_t kProducts = int64_t{kPeakRounds} * kChains;

}  // namespace

extern const PeakKernels peak_kernels_scalar;
constinit const PeakKernels peak_kernels_scalar = {
    {run_fma, kProducts}, {run_int8, kProducts}, {run_int8, kProducts}, {nullptr, 0}, read};

}  // namespace kokuban
