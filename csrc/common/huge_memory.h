// Memory on huge pages where the system gives them.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <memory>

namespace kokuban {

// `bytes` zero bytes that begin at a huge page; they go back with the last reference. Untouched
// memory is not resident. Throws std::bad_alloc when the system has no more.
std::shared_ptr<uint8_t> map_huge(size_t bytes);

}  // namespace kokuban
