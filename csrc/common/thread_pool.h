// Runs one job on several threads, the calling one included, and returns when it is done.
//
// A job is a number of items; workers claim them one after another from a shared counter, so a
// slow or interrupted worker costs only its share. The caller never waits for a worker that has not
// begun: a job is open until its items are claimed, then closed, and who comes late finds it closed.
// So a neighbour that takes a core away slows a step by that core and not by the time that a thread
// needs to come back. Which thread computes an item never changes what it computes.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <type_traits>
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
    void stop();
    void work(int worker);
    void claim(int worker);
    void leave();
    void wait_until_left();
    bool enter(uint64_t generation);
    uint64_t wait_for_job(uint64_t seen);

    std::vector<std::thread> workers_;
    // Generation of the job in the upper half; then a bit that says that it is closed, one that the
    // caller sleeps until it is empty, and the number of workers inside. Fields below are written only while it is closed and empty.
    alignas(64) std::atomic<uint64_t> state_;
    alignas(64) std::atomic<int64_t> next_{0};
    Job job_ = nullptr;
    void* context_ = nullptr;
    int64_t items_ = 0;
    alignas(64) std::atomic<int> sleepers_{0};
    std::atomic<bool> stop_{false};
    std::mutex mutex_;
    std::condition_variable wake_, left_;
};

}  // namespace kokuban
