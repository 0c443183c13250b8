#include "bindings/bindings.h"

namespace kokuban {

void bind_linear(nb::module_&) {}

}  // namespace kokuban
