#include "bindings/bindings.h"

NB_MODULE(_native, module) {
    // Threads that never end keep a few objects until the process does: nothing that anybody lost.
    nanobind::set_leak_warnings(false);
    module.doc() = "Kokuban's kernels and the program interpreter.";
    kokuban::bind_common(module);
    kokuban::bind_linear(module);
    kokuban::bind_attention(module);
    kokuban::bind_elementwise(module);
    kokuban::bind_sampling(module);
    kokuban::bind_program(module);
    kokuban::bind_peak(module);
    kokuban::bind_merges(module);
    kokuban::bind_strings(module);
}
