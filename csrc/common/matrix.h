// Rows of float32 that kernels read and write. A value of a Program is often a range of columns of
// a wider buffer, so rows lie `stride` elements apart and each is contiguous. No alignment is asked.
#pragma once

#include <stdint.h>

namespace kokuban {

struct Matrix {
    float* data;
    int64_t stride;
};

struct ConstMatrix {
    const float* data;
    int64_t stride;
};

}  // namespace kokuban
