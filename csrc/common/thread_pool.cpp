#include "common/thread_pool.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define KOKUBAN_PAUSE() _mm_pause()
#else
#define KOKUBAN_PAUSE() std::this_thread::yield()
#endif

namespace kokuban {
namespace {

// Spins before a worker sleeps: some 30 µs on a 3 GHz machine, longer than
// the gap between two operations of a step and shorter than the gap between two steps.
constexpr int kSpins = 1000;

constexpr uint64_t kClosed = uint64_t{1} << 31;
constexpr uint64_t kAwaited = uint64_t{1} << 30;
constexpr uint64_t kInside = kAwaited - 1;

// Spins before the caller sleeps: more than an item mostly takes.
constexpr int kCallerSpins = 8 * kSpins;

constexpr uint64_t generation_of(uint64_t state) { return state >> 32; }

}  // namespace

ThreadPool::ThreadPool(int threads) : state_(kClosed) {
    try {
        for (int worker = 1; worker < threads; ++worker) {
            workers_.emplace_back([this, worker] { work(worker); });
        }
    } catch (...) {  // the system has no more threads: those that began must end first
        stop();
        throw;
    }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
    stop_ = true;
    state_.store((generation_of(state_.load()) + 1) << 32 | kClosed);
    { std::lock_guard lock(mutex_); }  // a sleeper is either before its test or in wait
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
    state_.store((generation_of(state_.load(std::memory_order_relaxed)) + 1) << 32);  // open
    if (sleepers_.load()) {
        { std::lock_guard lock(mutex_); }
        wake_.notify_all();
    }
    claim(0);
    state_.fetch_or(kClosed);
    wait_until_left();
}

// A worker that was interrupted in an item may not come back before a neighbour's turn on its core is
// over, some milliseconds. A caller that sleeps leaves a core idle, and the system moves the worker
// there at once; one that spins or yields keeps it from that.
void ThreadPool::wait_until_left() {
    for (int spins = 0; spins < kCallerSpins; ++spins) {
        if (!(state_.load(std::memory_order_acquire) & kInside)) return;
        KOKUBAN_PAUSE();
    }
    std::unique_lock lock(mutex_);
    if (!(state_.fetch_or(kAwaited) & kInside)) return;
    left_.wait(lock, [&] { return !(state_.load(std::memory_order_acquire) & kInside); });
}

void ThreadPool::leave() {
    const uint64_t before = state_.fetch_sub(1, std::memory_order_acq_rel);
    if (!(before & kAwaited) || (before & kInside) != 1) return;
    { std::lock_guard lock(mutex_); }
    left_.notify_one();
}

void ThreadPool::claim(int worker) {
    const int64_t items = items_;
    for (;;) {
        const int64_t item = next_.fetch_add(1, std::memory_order_relaxed);
        if (item >= items) return;
        job_(context_, item, worker);
    }
}

bool ThreadPool::enter(uint64_t generation) {
    uint64_t state = state_.load(std::memory_order_acquire);
    while (generation_of(state) == generation && !(state & kClosed)) {
        if (state_.compare_exchange_weak(state, state + 1, std::memory_order_acquire)) return true;
    }
    return false;
}

uint64_t ThreadPool::wait_for_job(uint64_t seen) {
    for (int spins = 0; spins < kSpins; ++spins) {
        const uint64_t generation = generation_of(state_.load(std::memory_order_acquire));
        if (generation != seen) return generation;
        KOKUBAN_PAUSE();
    }
    std::unique_lock lock(mutex_);
    sleepers_.fetch_add(1);
    wake_.wait(lock, [&] { return generation_of(state_.load()) != seen; });
    sleepers_.fetch_sub(1);
    return generation_of(state_.load());
}

void ThreadPool::work(int worker) {
    uint64_t seen = 0;
    for (;;) {
        seen = wait_for_job(seen);
        if (stop_) return;
        if (!enter(seen)) continue;
        claim(worker);
        leave();
    }
}

}  // namespace kokuban
