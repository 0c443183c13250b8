#include "bindings/bindings.h"
#include "common/isa.h"
#include "common/thread_pool.h"

#include <sys/mman.h>

namespace kokuban {

namespace {

// Linux 5.14; older headers have no name for it.
constexpr int kPopulateWrite = 23;

bool populate(Array<uint8_t, 1> memory) {
    nb::gil_scoped_release release;
    return madvise(memory.data(), memory.size(), kPopulateWrite) == 0;
}

}  // namespace

void bind_common(nb::module_& module) {
    module.def("populate", &populate, nb::arg("memory"),
               "Give memory that starts at a page its pages now. False where the system cannot.");
    module.def(
        "isa_level", [](int cap) { return static_cast<int>(capped_isa(cap)); }, nb::arg("cap") = -1,
        "The instruction set level of this machine, at most `cap`: an index into ISA_LEVELS.");
    nb::class_<ThreadPool>(module, "ThreadPool", "Threads for kernels; the caller is worker 0.")
        .def(nb::init<int>(), nb::arg("threads"))
        .def_prop_ro("threads", &ThreadPool::threads);
}

}  // namespace kokuban
