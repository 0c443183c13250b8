#include "common/thread_pool.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define KOKUBAN_PAUSE() _mm_pause()
#else
#define KOKUBAN_PAUSE() std::this_thread::yield()
#endif

namespace kokuban {
namespace {

// Spins before a worker sleeps, or the caller yields: about 30 µs on a 3 GHz machine, longer than
// the gap between two operations of a step and shorter than the gap between two steps.
constexpr int kSpins = 1000;

}  // namespace

ThreadPool::ThreadPool(int threads) {
    for (int worker = 1; worker < threads; ++worker) {
        workers_.emplace_back([this, worker] { work(worker); });
    }
}

ThreadPool::~ThreadPool() {
    {
        std::lock_guard lock(mutex_);
        stop_ = true;
        generation_.fetch_add(1);
    }
    wake_.notify_all();
    for (auto& thread : workers_) thread.join();
}

void ThreadPool::run(int64_t items, Job job, void* context) {
    if (workers_.empty() || items <= 1) {
        for (int64_t item = 0; item < items; ++item) job(context, item, 0);
        return;
    }
    job_ = job;
    context_ = context;
    items_ = items;
    next_.store(0, std::memory_order_relaxed);
    active_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
    generation_.fetch_add(1);  // publishes the job
    if (sleepers_.load()) {
        std::lock_guard lock(mutex_);  // a sleeper is either before its test or in wait
        wake_.notify_all();
    }
    claim(0);
    for (int spins = 0; active_.load(std::memory_order_acquire); ++spins) {
        if (spins < kSpins) {
            KOKUBAN_PAUSE();
        } else {
            std::this_thread::yield();  // a worker was interrupted: let it have this core
        }
    }
}

void ThreadPool::claim(int worker) {
    const int64_t items = items_;
    for (;;) {
        const int64_t item = next_.fetch_add(1, std::memory_order_relaxed);
        if (item >= items) return;
        job_(context_, item, worker);
    }
}

void ThreadPool::work(int worker) {
    uint64_t seen = 0;
    for (;;) {
        uint64_t now = generation_.load(std::memory_order_acquire);
        for (int spins = 0; now == seen && spins < kSpins; ++spins) {
            KOKUBAN_PAUSE();
            now = generation_.load(std::memory_order_acquire);
        }
        if (now == seen) {
            std::unique_lock lock(mutex_);
            sleepers_.fetch_add(1);
            wake_.wait(lock, [&] { return generation_.load() != seen; });
            sleepers_.fetch_sub(1);
            now = generation_.load();
        }
        if (stop_) return;
        seen = now;
        claim(worker);
        active_.fetch_sub(1, std::memory_order_release);
    }
}

}  // namespace kokuban
