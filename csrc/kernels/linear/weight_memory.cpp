#include "kernels/linear/weight_memory.h"

#include <sys/mman.h>

#include <mutex>
#include <new>

namespace kokuban {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kChunk = size_t{32} << 20;
constexpr size_t kOwnChunk = kChunk / 4;  // from this size on a matrix shares with nobody

constexpr size_t round_up(size_t x, size_t step) { return (x + step - 1) / step * step; }

// `size` bytes, a multiple of the huge page's, aligned to one.
std::shared_ptr<uint8_t> map_chunk(size_t size) {
    void* mapped = mmap(nullptr, size + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                        -1, 0);
    if (mapped == MAP_FAILED) throw std::bad_alloc();
    auto* raw = static_cast<uint8_t*>(mapped);
    const size_t head = round_up(reinterpret_cast<uintptr_t>(raw), kHugePage) - reinterpret_cast<uintptr_t>(raw);
    if (head) munmap(raw, head);
    if (head < kHugePage) munmap(raw + head + size, kHugePage - head);
    madvise(raw + head, size, MADV_HUGEPAGE);  // a wish: without huge pages all works as well
    return {raw + head, [size](uint8_t* p) { munmap(p, size); }};
}

std::mutex mutex;
std::weak_ptr<uint8_t> shared_chunk;  // the one being filled; weak, so that it ends with its weights
size_t shared_used = 0;

}  // namespace

WeightMemory::WeightMemory(size_t bytes) {
    if (bytes >= kOwnChunk) {
        chunk_ = map_chunk(round_up(bytes, kHugePage));
        data_ = chunk_.get();
        return;
    }
    const size_t size = round_up(bytes, 64);
    std::lock_guard lock(mutex);
    chunk_ = shared_chunk.lock();
    if (!chunk_ || kChunk - shared_used < size) {
        chunk_ = map_chunk(kChunk);
        shared_chunk = chunk_;
        shared_used = 0;
    }
    data_ = chunk_.get() + shared_used;
    shared_used += size;
}

}  // namespace kokuban
