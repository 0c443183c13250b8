#include "bindings/bindings.h"

namespace kokuban {

void bind_elementwise(nb::module_&) {}

}  // namespace kokuban
