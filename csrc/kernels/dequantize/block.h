// One block of a quantised row, taken apart into codes and scales: the only place that knows the
// bit layouts of the file formats. The packer and the dequantiser build on it.
//
// Element i of a block has the code c = byte i % 4 of words[i / 4], and with sub-block j =
// i / sub_block the value (all in f32, each operation rounded once, in the order written):
//     blocks of 32    d * (c - bias)                     or  d * c + m
//     blocks of 256   (d * scales[j]) * (c - bias)       or  (d * scales[j]) * c - m * mins[j]
// Source: the block structs and dequantize_row_* functions of ggml (ggml-common.h, ggml-quants.c).
#pragma once

#include <stdint.h>

#include "kernels/dequantize/weight_type.h"

namespace kokuban {

struct Block {
    uint32_t words[64];  // block_elements / 4 of them are used
    uint16_t d, m;       // f16
    int8_t scales[16];   // blocks of 256 only: one for each sub-block
    uint8_t mins[16];
};

// raw holds format.block_bytes bytes, at any alignment. format is quantised.
void take_apart(const WeightFormat& format, const uint8_t* raw, Block& block);

}  // namespace kokuban
