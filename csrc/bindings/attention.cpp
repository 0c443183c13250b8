#include "bindings/bindings.h"

namespace kokuban {

void bind_attention(nb::module_&) {}

}  // namespace kokuban
