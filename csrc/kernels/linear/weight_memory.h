// Memory for packed weights, on huge pages where the system gives them: a step reads all weights
// once, and with small pages each 4 KiB of them costs a walk of the page tables (a fifth of the
// bandwidth of one row; `kokuban bench kernels`).
//
// Small matrices share chunks of 32 MiB, in the order in which they are made; a chunk goes back when
// the last of them is gone. Untouched memory is not resident. Safe to use from several threads.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <memory>

namespace kokuban {

class WeightMemory {
   public:
    // At a multiple of 64, zero. Throws std::bad_alloc when the system has no more.
    explicit WeightMemory(size_t bytes);
    uint8_t* data() const { return data_; }

   private:
    std::shared_ptr<uint8_t> chunk_;
    uint8_t* data_;
};

}  // namespace kokuban
