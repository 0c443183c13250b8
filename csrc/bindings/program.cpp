#include "bindings/bindings.h"

namespace kokuban {

void bind_program(nb::module_&) {}

}  // namespace kokuban
