// What Python holds of a weight: the packed matrix and its memory. The program interpreter's
// bindings take it as an argument and read `matrix()`.
#pragma once

#include <memory>
#include <new>
#include <optional>
#include <string>
#include <tuple>

#include "bindings/bindings.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/pack.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>

namespace kokuban {

// Memory at a multiple of 64, not initialised.
class AlignedBytes {
   public:
    explicit AlignedBytes(size_t size)
        : data_(static_cast<uint8_t*>(::operator new(size, std::align_val_t(64)))) {}
    uint8_t* data() const { return data_.get(); }

   private:
    struct Free {
        void operator()(uint8_t* p) const { ::operator delete(p, std::align_val_t(64)); }
    };
    std::unique_ptr<uint8_t[], Free> data_;
};

class PackedWeight {
   public:
    PackedWeight(const WeightFormat& format, int64_t n, int64_t k)
        : matrix_{format.type, n, k, packed_tile_bytes(format, k), nullptr},
          memory_(static_cast<size_t>(matrix_.tiles() * matrix_.tile_bytes)) {
        matrix_.data = memory_.data();
    }
    const PackedMatrix& matrix() const { return matrix_; }
    uint8_t* data() { return memory_.data(); }

   private:
    PackedMatrix matrix_;
    AlignedBytes memory_;
};

}  // namespace kokuban
