#include <immintrin.h>

#include "kernels/peak/peak.h"

namespace kokuban {
namespace {

// Enough chains to hide a latency of 4 or 5 cycles at two a cycle, in sixteen registers.
constexpr int kFloatChains = 12;
constexpr int kWordChains = 8;

// Tells the compiler that x may have changed. Without it all chains were one, being equal.
#define KOKUBAN_RENEW(x) asm("" : "+x"(x))

double sum_of(const float* lanes, int count) {
    double sum = 0;
    for (int i = 0; i < count; ++i) sum += lanes[i];
    return sum;
}

// Every loop over the accumulators is unrolled, or the compiler keeps them in memory.

double run_fma() {
    __m256 one = _mm256_set1_ps(1.0f);
    KOKUBAN_RENEW(one);
    __m256 acc[kFloatChains];
#pragma GCC unroll 12
    for (int i = 0; i < kFloatChains; ++i) {
        acc[i] = _mm256_setzero_ps();
        KOKUBAN_RENEW(acc[i]);
    }
    for (int round = 0; round < kPeakRounds; ++round) {
#pragma GCC unroll 12
        for (int i = 0; i < kFloatChains; ++i) acc[i] = _mm256_fmadd_ps(one, one, acc[i]);
    }
    float lanes[8 * kFloatChains];
#pragma GCC unroll 12
    for (int i = 0; i < kFloatChains; ++i) _mm256_storeu_ps(lanes + 8 * i, acc[i]);
    return sum_of(lanes, 8 * kFloatChains);
}

template <bool kWiden>
double run_int8() {
    __m256i codes = _mm256_set1_epi8(1), x = codes;
    __m256i ones = _mm256_set1_epi16(1);
    KOKUBAN_RENEW(ones);
    __m256i acc[kWordChains];
#pragma GCC unroll 8
    for (int i = 0; i < kWordChains; ++i) {
        acc[i] = _mm256_setzero_si256();
        KOKUBAN_RENEW(acc[i]);
    }
    for (int round = 0; round < kPeakRounds; ++round) {
#pragma GCC unroll 8
        for (int i = 0; i < kWordChains; ++i) {
            KOKUBAN_RENEW(codes);
            const __m256i products = _mm256_maddubs_epi16(codes, x);
            acc[i] = kWiden ? _mm256_add_epi32(acc[i], _mm256_madd_epi16(products, ones))
                            : _mm256_add_epi16(acc[i], products);
            KOKUBAN_RENEW(acc[i]);
        }
    }
    float lanes[8 * kWordChains];
#pragma GCC unroll 8
    for (int i = 0; i < kWordChains; ++i) {
        const __m256i sums = kWiden ? acc[i] : _mm256_madd_epi16(acc[i], ones);
        _mm256_storeu_ps(lanes + 8 * i, _mm256_cvtepi32_ps(sums));
    }
    return sum_of(lanes, 8 * kWordChains);
}

// How far ahead memory is asked for; the processor's own prefetch stops at each page.
constexpr size_t kAhead = 4096;

uint64_t read(const uint8_t* p, size_t bytes) {
    constexpr int kVectors = kPeakReadBytes / 32;
    __m256i sums[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) sums[i] = _mm256_setzero_si256();
    for (size_t at = 0; at < bytes; at += kPeakReadBytes) {
        const auto* vectors = reinterpret_cast<const __m256i*>(p + at);
        for (size_t line = 0; line < kPeakReadBytes; line += 64) __builtin_prefetch(p + at + kAhead + line);
#pragma GCC unroll 16
        for (int i = 0; i < kVectors; ++i) sums[i % 4] = _mm256_add_epi64(sums[i % 4], _mm256_loadu_si256(vectors + i));
    }
    uint64_t words[4];
    const __m256i sum = _mm256_add_epi64(_mm256_add_epi64(sums[0], sums[1]), _mm256_add_epi64(sums[2], sums[3]));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(words), sum);
    return words[0] + words[1] + words[2] + words[3];
}

constexpr int64_t kFloatProducts = int64_t{kPeakRounds} * kFloatChains * 8;
constexpr int64_t kByteProducts = int64_t{kPeakRounds} * kWordChains * 32;

}  // namespace

extern const PeakKernels peak_kernels_avx2;
constinit const PeakKernels peak_kernels_avx2 = {{run_fma, kFloatProducts},
                                                 {run_int8<false>, kByteProducts},
                                                 {run_int8<true>, kByteProducts},
                                                 {nullptr, 0},
                                                 read};

}  // namespace kokuban
