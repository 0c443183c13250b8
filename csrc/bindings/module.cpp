#include "bindings/bindings.h"

NB_MODULE(_native, module) {
    module.doc() = "Kokuban's kernels and the program interpreter.";
    kokuban::bind_common(module);
    kokuban::bind_linear(module);
    kokuban::bind_attention(module);
    kokuban::bind_elementwise(module);
    kokuban::bind_sampling(module);
    kokuban::bind_program(module);
}
