// Works a thread pool hard, for ThreadSanitizer to watch: `make sanitize`, or tools/sanitize.py.
//
// Short jobs one after the other, with pauses of every length between them, so that workers are met
// spinning, falling asleep, asleep and waking; items that take longer than the caller spins; pools
// that end at once, after a job, or while their workers wake. What jobs write is plain memory, read
// by the caller after `run` and by other workers in the next job: the pool alone must order it.
//
//     thread_pool_stress [ROUNDS] [SEED]      exit code 1 where an item was lost or done twice
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "common/thread_pool.h"

namespace {

constexpr int kMaxThreads = 4;
constexpr int kJobsOfAPool = 40;
constexpr int64_t kMaxItems = 64;

using Random = std::mt19937_64;

int below(Random& random, int limit) { return static_cast<int>(random() % static_cast<uint64_t>(limit)); }

// Nothing, a moment, about as long as a worker spins, or long enough for all to sleep.
void pause(Random& random) {
    const int kind = below(random, 8);
    if (kind == 0) std::this_thread::sleep_for(std::chrono::microseconds(below(random, 300)));
    if (kind == 1) std::this_thread::yield();
    if (kind == 2) {
        const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(below(random, 60));
        while (std::chrono::steady_clock::now() < end) continue;
    }
}

struct Tally {
    int64_t failures = 0;
    int64_t jobs = 0;
};

// Each item adds one to its own number, and one to its worker's; sums tell what was lost or done twice.
void run_jobs(kokuban::ThreadPool& pool, Random& random, Tally& tally) {
    std::vector<int64_t> items(kMaxItems, 0);
    std::vector<int64_t> workers(static_cast<size_t>(pool.threads()), 0);
    std::vector<int64_t> expected(kMaxItems, 0);
    int64_t total = 0;
    for (int job = 0; job < kJobsOfAPool; ++job) {
        const int64_t count = below(random, kMaxItems + 1);
        const int slow = below(random, 40);
        pool.run(count, [&](int64_t item, int worker) {
            if (item == slow) std::this_thread::sleep_for(std::chrono::microseconds(150));
            items[static_cast<size_t>(item)] += 1;
            workers[static_cast<size_t>(worker)] += 1;
        });
        int64_t done = 0;
        for (int64_t item = 0; item < count; ++item) expected[static_cast<size_t>(item)] += 1;
        for (const int64_t each : workers) done += each;
        total += count;
        if (items != expected || done != total) ++tally.failures;
        ++tally.jobs;
        pause(random);
    }
}

// One pool after another, of every size; some end without a job, some while others are made.
void round(Random& random, Tally& tally) {
    const int threads = 1 + below(random, kMaxThreads);
    auto pool = std::make_unique<kokuban::ThreadPool>(threads);
    if (below(random, 4) == 0) pause(random);
    if (below(random, 8) != 0) run_jobs(*pool, random, tally);
    if (below(random, 2) == 0) {  // a larger or smaller one takes its place
        pool = std::make_unique<kokuban::ThreadPool>(1 + below(random, kMaxThreads));
        run_jobs(*pool, random, tally);
    }
    if (below(random, 2) == 0) pause(random);
}

}  // namespace

int main(int argc, char** argv) {
    const int rounds = argc > 1 ? std::atoi(argv[1]) : 300;
    const uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 0;
    // Two callers with pools of their own, as a server that measures beside its engine has.
    std::vector<Tally> tallies(2);
    std::vector<std::thread> callers;
    for (size_t caller = 0; caller < tallies.size(); ++caller) {
        callers.emplace_back([&tallies, caller, rounds, seed] {
            Random random(seed * 2 + caller);
            for (int each = 0; each < rounds; ++each) round(random, tallies[caller]);
        });
    }
    for (auto& caller : callers) caller.join();
    int64_t failures = 0;
    int64_t jobs = 0;
    for (const Tally& tally : tallies) {
        failures += tally.failures;
        jobs += tally.jobs;
    }
    std::printf("%lld jobs in %d rounds, %lld with items lost or done twice\n", static_cast<long long>(jobs),
                2 * rounds, static_cast<long long>(failures));
    return failures == 0 ? 0 : 1;
}
