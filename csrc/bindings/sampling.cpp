#include "bindings/bindings.h"

namespace kokuban {

void bind_sampling(nb::module_&) {}

}  // namespace kokuban
