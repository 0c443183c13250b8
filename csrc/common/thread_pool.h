// Runs one job on several threads, the calling one included, and returns when it is done.
//
// A job is a number of items; workers claim them one after another from a shared counter, so a
// slow or interrupted worker costs only its share. Which thread computes an item never changes
// what it computes. Between jobs workers spin for a short while, then sleep.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace kokuban {

class ThreadPool {
   public:
    // `threads` workers in all; the thread that calls `run` is worker 0.
    explicit ThreadPool(int threads);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int threads() const { return static_cast<int>(workers_.size()) + 1; }

    // Calls job(context, item, worker) for each item below `items`. One caller at a time.
    // A job must not throw and must not call `run`.
    using Job = void (*)(void* context, int64_t item, int worker);
    void run(int64_t items, Job job, void* context);

    // The same for a callable, by reference: job(item, worker).
    template <typename Callable>
    void run(int64_t items, Callable&& job) {
        run(
            items,
            [](void* context, int64_t item, int worker) {
                (*static_cast<std::remove_reference_t<Callable>*>(context))(item, worker);
            },
            &job);
    }

   private:
    void work(int worker);
    void claim(int worker);

    std::vector<std::thread> workers_;
    alignas(64) std::atomic<uint64_t> generation_{0};
    alignas(64) std::atomic<int64_t> next_{0};
    alignas(64) std::atomic<int> active_{0};
    Job job_ = nullptr;
    void* context_ = nullptr;
    int64_t items_ = 0;
    std::atomic<bool> stop_{false};
    std::atomic<int> sleepers_{0};
    std::mutex mutex_;
    std::condition_variable wake_;
};

}  // namespace kokuban
