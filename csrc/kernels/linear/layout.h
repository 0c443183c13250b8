// Where things lie in a packed tile of sixteen rows of W.
//
// Quantised types. A tile is k / kUnit units one after another, each of kUnit = 32 or 256 inputs (a
// block of the file format), without gaps:
//
//     planes   for each group of 32 inputs: 64 * bits bytes, see below
//     d        [16] f16                        m        [16] f16, formats with a minimum
//     blocks of 256 only, for each of the kUnit / sub_block sub-blocks:
//     scales   [sub-block][16] u8 or i8        mins     [sub-block][16] u8, formats with a minimum
//     (Q2_K: scale in the low and minimum in the high nibble of one byte)
//
// A quad is sixteen rows by four consecutive inputs: 64 bytes, lane r (32 bits) holds the codes of
// row r, first input in the lowest byte. A group has eight quads. Its planes are vectors of 64 bytes:
//
//     8 bits       8 vectors, one for each quad
//     4 bits       4 vectors: v holds quad 2v in the low nibbles and quad 2v + 1 in the high ones
//     2 bits       2 vectors: v holds quad 4v + i in bits 2i and 2i + 1 of each byte
//     1 bit        1 vector: quad q in bit q
//     5 = 4 + 1, 6 = 4 + 2, 3 = 2 + 1 bits: the plane of the low bits, then that of the high ones
//
// F32, F16, BF16: a tile is [k][16] numbers of the type.
#pragma once

#include "kernels/dequantize/weight_type.h"

namespace kokuban {

struct TileLayout {
    int unit_elements;
    int planes_bytes;  // of a group
    int d_offset, m_offset, scales_offset, mins_offset;  // inside a unit
    int unit_bytes;
};

constexpr TileLayout tile_layout(const WeightFormat& format) {
    TileLayout layout = {};
    layout.unit_elements = format.block_elements;
    if (format.bits == 0) {
        layout.unit_bytes = 16 * format.block_bytes;
        return layout;
    }
    layout.planes_bytes = 64 * format.bits;
    layout.d_offset = format.block_elements / 32 * layout.planes_bytes;
    layout.m_offset = layout.d_offset + 32;
    layout.scales_offset = layout.m_offset + (format.has_min ? 32 : 0);
    const int scales_bytes = format.block_elements == 256 ? 16 * (256 / format.sub_block) : 0;
    // Where a byte holds scale and minimum, the two share their place.
    const bool joined = format.type == WeightType::kQ2_K;
    layout.mins_offset = layout.scales_offset + (joined ? 0 : scales_bytes);
    const bool second = format.has_min && !joined;
    layout.unit_bytes = layout.scales_offset + scales_bytes * (second ? 2 : 1);
    return layout;
}

}  // namespace kokuban
