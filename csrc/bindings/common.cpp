#include "bindings/bindings.h"
#include "common/isa.h"
#include "common/thread_pool.h"

namespace kokuban {

void bind_common(nb::module_& module) {
    module.def(
        "isa_level", [](int cap) { return static_cast<int>(capped_isa(cap)); }, nb::arg("cap") = -1,
        "The instruction set level of this machine, at most `cap`: an index into ISA_LEVELS.");
    nb::class_<ThreadPool>(module, "ThreadPool", "Threads for kernels; the caller is worker 0.")
        .def(nb::init<int>(), nb::arg("threads"))
        .def_prop_ro("threads", &ThreadPool::threads);
}

}  // namespace kokuban
