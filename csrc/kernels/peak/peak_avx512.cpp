#include <immintrin.h>

#include "kernels/peak/peak.h"

namespace kokuban {
namespace {

// Enough chains to hide a latency of 6 cycles at two a cycle.
constexpr int kChains = 16;

// Tells the compiler that x may have changed. Without it all chains were one, being equal.
#define KOKUBAN_RENEW(x) asm("" : "+v"(x))

// Every loop over the accumulators is unrolled, or the compiler keeps them in memory.

double sum_of(const float* lanes) {
    double sum = 0;
    for (int i = 0; i < 16 * kChains; ++i) sum += lanes[i];
    return sum;
}

double run_fma() {
    __m512 one = _mm512_set1_ps(1.0f);
    KOKUBAN_RENEW(one);
    __m512 acc[kChains];
#pragma GCC unroll 16
    for (int i = 0; i < kChains; ++i) {
        acc[i] = _mm512_setzero_ps();
        KOKUBAN_RENEW(acc[i]);
    }
    for (int round = 0; round < kPeakRounds; ++round) {
#pragma GCC unroll 16
        for (int i = 0; i < kChains; ++i) acc[i] = _mm512_fmadd_ps(one, one, acc[i]);
    }
    float lanes[16 * kChains];
#pragma GCC unroll 16
    for (int i = 0; i < kChains; ++i) _mm512_storeu_ps(lanes + 16 * i, acc[i]);
    return sum_of(lanes);
}

double run_int8() {
    __m512i one = _mm512_set1_epi8(1);
    KOKUBAN_RENEW(one);
    __m512i acc[kChains];
#pragma GCC unroll 16
    for (int i = 0; i < kChains; ++i) {
        acc[i] = _mm512_setzero_si512();
        KOKUBAN_RENEW(acc[i]);
    }
    for (int round = 0; round < kPeakRounds; ++round) {
#pragma GCC unroll 16
        for (int i = 0; i < kChains; ++i) acc[i] = _mm512_dpbusd_epi32(acc[i], one, one);
    }
    float lanes[16 * kChains];
#pragma GCC unroll 16
    for (int i = 0; i < kChains; ++i) _mm512_storeu_ps(lanes + 16 * i, _mm512_cvtepi32_ps(acc[i]));
    return sum_of(lanes);
}

// The rest of this file must run without this extension.
__attribute__((target("avx512bf16"))) double run_bf16() {
    __m512i one = _mm512_set1_epi16(0x3f80);  // 1.0
    KOKUBAN_RENEW(one);
    __m512 acc[kChains];
#pragma GCC unroll 16
    for (int i = 0; i < kChains; ++i) {
        acc[i] = _mm512_setzero_ps();
        KOKUBAN_RENEW(acc[i]);
    }
    for (int round = 0; round < kPeakRounds; ++round) {
#pragma GCC unroll 16
        for (int i = 0; i < kChains; ++i) acc[i] = _mm512_dpbf16_ps(acc[i], (__m512bh)one, (__m512bh)one);
    }
    float lanes[16 * kChains];
#pragma GCC unroll 16
    for (int i = 0; i < kChains; ++i) _mm512_storeu_ps(lanes + 16 * i, acc[i]);
    return sum_of(lanes);
}

// How far ahead memory is asked for; the processor's own prefetch stops at each page.
constexpr size_t kAhead = 4096;

uint64_t read(const uint8_t* p, size_t bytes) {
    constexpr int kVectors = kPeakReadBytes / 64;
    __m512i sums[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) sums[i] = _mm512_setzero_si512();
    for (size_t at = 0; at < bytes; at += kPeakReadBytes) {
        for (size_t line = 0; line < kPeakReadBytes; line += 64) __builtin_prefetch(p + at + kAhead + line);
#pragma GCC unroll 8
        for (int i = 0; i < kVectors; ++i) sums[i % 4] = _mm512_add_epi64(sums[i % 4], _mm512_loadu_si512(p + at + 64 * i));
    }
    uint64_t words[8], total = 0;
    const __m512i sum = _mm512_add_epi64(_mm512_add_epi64(sums[0], sums[1]), _mm512_add_epi64(sums[2], sums[3]));
    _mm512_storeu_si512(words, sum);
    for (const uint64_t word : words) total += word;
    return total;
}

constexpr int64_t kRuns = int64_t{kPeakRounds} * kChains;

}  // namespace

extern const PeakKernels peak_kernels_avx512;
constinit const PeakKernels peak_kernels_avx512 = {
    {run_fma, kRuns * 16}, {run_int8, kRuns * 64}, {run_int8, kRuns * 64}, {run_bf16, kRuns * 32}, read};

}  // namespace kokuban
