#include "kernels/peak/peak.h"

#include <memory>
#include <tuple>

#include "bindings/bindings.h"
#include "common/thread_pool.h"

#include <nanobind/stl/tuple.h>

namespace kokuban {
namespace {

// What each worker adds up, on a cache line of its own.
template <typename T>
class WorkerSums {
   public:
    explicit WorkerSums(const ThreadPool* pool)
        : count_(pool ? pool->threads() : 1), slots_(std::make_unique<Slot[]>(static_cast<size_t>(count_))) {}
    T& operator[](int worker) { return slots_[static_cast<size_t>(worker)].sum; }
    T total() const {
        T sum = 0;
        for (int i = 0; i < count_; ++i) sum += slots_[static_cast<size_t>(i)].sum;
        return sum;
    }

   private:
    struct alignas(64) Slot {
        T sum = 0;
    };
    int count_;
    std::unique_ptr<Slot[]> slots_;
};

template <typename Job>
void spread(ThreadPool* pool, int64_t items, Job&& job) {
    if (pool) return pool->run(items, job);
    for (int64_t item = 0; item < items; ++item) job(item, 0);
}

std::tuple<int64_t, double> peak(int which, int64_t items, int cap, ThreadPool* pool) {
    const Isa isa = capped_isa(cap);
    const PeakKernels& kernels = peak_kernels(isa);
    const PeakProbe* const probes[] = {&kernels.fma, &kernels.int8, &kernels.int8_widened, &kernels.bf16};
    const PeakProbe& probe = *probes[which];
    if (!probe.run || (&probe == &kernels.bf16 && !peak_has_bf16(isa))) return {0, 0.0};
    nb::gil_scoped_release release;
    WorkerSums<double> sums(pool);
    spread(pool, items, [&](int64_t, int worker) { sums[worker] += probe.run(); });
    return {items * probe.products, sums.total()};
}

// A piece that a worker claims: long enough to be read at full speed, short enough to share.
constexpr size_t kPieceBytes = 128 * 1024;

uint64_t read_memory(const Array<const uint8_t, 1>& memory, int64_t passes, int cap, ThreadPool* pool) {
    const PeakKernels& kernels = peak_kernels(capped_isa(cap));
    const uint8_t* data = memory.data();
    const size_t size = memory.size();
    if (size % kPeakReadBytes) throw nb::value_error("memory must be a multiple of 512 bytes");
    const auto pieces = static_cast<int64_t>((size + kPieceBytes - 1) / kPieceBytes);
    nb::gil_scoped_release release;
    WorkerSums<uint64_t> sums(pool);
    spread(pool, pieces * passes, [&](int64_t item, int worker) {
        const size_t begin = static_cast<size_t>(item % pieces) * kPieceBytes;
        sums[worker] += kernels.read(data + begin, size - begin < kPieceBytes ? size - begin : kPieceBytes);
    });
    return sums.total();
}

}  // namespace

void bind_peak(nb::module_& module) {
    module.def("peak", &peak, nb::arg("which"), nb::arg("items"), nb::arg("isa_cap") = -1,
               nb::arg("pool").none() = nb::none());
    module.def("read_memory", &read_memory, nb::arg("memory"), nb::arg("passes"), nb::arg("isa_cap") = -1,
               nb::arg("pool").none() = nb::none());
}

}  // namespace kokuban
