// out[i] = scale * row[i], from the bytes of a model file: the embedding lookup.
//
//   raw    one row of k elements as the file stores it, any alignment; k is a multiple of
//          format.block_elements
//   out    [k] f32
//
// Each element is exactly what block.h defines (for F32, F16, BF16: the number itself), then one
// product with scale. Allocates nothing. One variant: a step reads a few rows.
#pragma once

#include <stdint.h>

#include "kernels/dequantize/block.h"

namespace kokuban {

void dequantize_row(const WeightFormat& format, const uint8_t* raw, int64_t k, float scale, float* out);

// The elements of one block, without the outer scale.
void dequantize_block(const WeightFormat& format, const Block& block, float* out);

// Bytes of a row of k elements in the file.
inline int64_t row_bytes(const WeightFormat& format, int64_t k) {
    return k / format.block_elements * format.block_bytes;
}

}  // namespace kokuban
