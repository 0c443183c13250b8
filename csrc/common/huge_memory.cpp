#include "common/huge_memory.h"

#include <sys/mman.h>

#include <new>

namespace kokuban {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

constexpr size_t round_up(size_t x, size_t step) { return (x + step - 1) / step * step; }

}  // namespace

std::shared_ptr<uint8_t> map_huge(size_t bytes) {
    const size_t size = round_up(bytes, kHugePage);
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

}  // namespace kokuban
