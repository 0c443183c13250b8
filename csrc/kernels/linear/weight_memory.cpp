#include "kernels/linear/weight_memory.h"

#include <mutex>

#include "common/huge_memory.h"

namespace kokuban {
namespace {

constexpr size_t kChunk = size_t{32} << 20;
constexpr size_t kOwnChunk = kChunk / 4;  // from this size on a matrix shares with nobody

constexpr size_t round_up(size_t x, size_t step) { return (x + step - 1) / step * step; }

std::mutex mutex;
std::weak_ptr<uint8_t> shared_chunk;  // the one being filled; weak, so that it ends with its weights
size_t shared_used = 0;

}  // namespace

WeightMemory::WeightMemory(size_t bytes) {
    if (bytes >= kOwnChunk) {
        chunk_ = map_huge(bytes);
        data_ = chunk_.get();
        return;
    }
    const size_t size = round_up(bytes, 64);
    std::lock_guard lock(mutex);
    chunk_ = shared_chunk.lock();
    if (!chunk_ || kChunk - shared_used < size) {
        chunk_ = map_huge(kChunk);
        shared_chunk = chunk_;
        shared_used = 0;
    }
    data_ = chunk_.get() + shared_used;
    shared_used += size;
}

}  // namespace kokuban
