// From the file's layout of a weight matrix to that of the kernels (layout.h), and back.
//
//   raw    n rows of k elements as the file stores them, any alignment
//
// Codes and scales are moved, never rounded: the packed matrix holds the same numbers. Rows of the
// last tile beyond n are zero bytes. k is a multiple of the format's block_elements.
// Tiles are independent: a caller packs them in any order, on any thread.
#pragma once

#include "kernels/linear/linear.h"

namespace kokuban {

int64_t packed_tile_bytes(const WeightFormat& format, int64_t k);

// Writes packed_tile_bytes bytes at out.
void pack_tile(const WeightFormat& format, const uint8_t* raw, int64_t n, int64_t k, int64_t tile, uint8_t* out);

// Row `row` of the matrix as f32: exactly what dequantize_row gives for the bytes in the file.
void unpack_row(const PackedMatrix& w, int64_t row, float* out);

}  // namespace kokuban
