#include "kernels/linear/pack.h"

#include <string.h>

#include "kernels/dequantize/dequantize.h"
#include "kernels/linear/layout.h"

namespace kokuban {
namespace {

constexpr int kQuads = 8;  // in a group

// A plane of `kBits` bits of a group: bits kFrom … kFrom + kBits - 1 of each code. Lane `lane` of
// each vector is written or read.
template <int kBits, int kFrom>
struct Plane {
    static constexpr int kInVector = 8 / kBits;  // quads that share a vector
    static constexpr int kBytes = 64 * kBits;
    static constexpr uint32_t kMask = ((1u << kBits) - 1u) * 0x01010101u;

    static void write(const uint32_t* words, int lane, uint8_t* plane) {
        for (int v = 0; v < kQuads / kInVector; ++v) {
            uint32_t joined = 0;
            for (int i = 0; i < kInVector; ++i) {
                joined |= ((words[kInVector * v + i] >> kFrom) & kMask) << (kBits * i);
            }
            memcpy(plane + 64 * v + 4 * lane, &joined, 4);
        }
    }

    static void read(const uint8_t* plane, int lane, uint32_t* words) {
        for (int v = 0; v < kQuads / kInVector; ++v) {
            uint32_t joined;
            memcpy(&joined, plane + 64 * v + 4 * lane, 4);
            for (int i = 0; i < kInVector; ++i) {
                words[kInVector * v + i] |= ((joined >> (kBits * i)) & kMask) << kFrom;
            }
        }
    }
};

void write_planes(int bits, const uint32_t* words, int lane, uint8_t* planes) {
    if (bits == 8) return Plane<8, 0>::write(words, lane, planes);
    if (bits >= 4) {
        Plane<4, 0>::write(words, lane, planes);
        if (bits == 5) Plane<1, 4>::write(words, lane, planes + Plane<4, 0>::kBytes);
        if (bits == 6) Plane<2, 4>::write(words, lane, planes + Plane<4, 0>::kBytes);
        return;
    }
    Plane<2, 0>::write(words, lane, planes);
    if (bits == 3) Plane<1, 2>::write(words, lane, planes + Plane<2, 0>::kBytes);
}

// The inverse; `words` must be zero.
void read_planes(int bits, const uint8_t* planes, int lane, uint32_t* words) {
    if (bits == 8) return Plane<8, 0>::read(planes, lane, words);
    if (bits >= 4) {
        Plane<4, 0>::read(planes, lane, words);
        if (bits == 5) Plane<1, 4>::read(planes + Plane<4, 0>::kBytes, lane, words);
        if (bits == 6) Plane<2, 4>::read(planes + Plane<4, 0>::kBytes, lane, words);
        return;
    }
    Plane<2, 0>::read(planes, lane, words);
    if (bits == 3) Plane<1, 2>::read(planes + Plane<2, 0>::kBytes, lane, words);
}

void write_scales(const WeightFormat& format, const TileLayout& layout, const Block& block, int lane,
                  uint8_t* unit) {
    memcpy(unit + layout.d_offset + 2 * lane, &block.d, 2);
    if (format.has_min) memcpy(unit + layout.m_offset + 2 * lane, &block.m, 2);
    if (format.block_elements != 256) return;
    const bool joined = format.type == WeightType::kQ2_K;
    for (int j = 0; j < 256 / format.sub_block; ++j) {
        const uint8_t scale = static_cast<uint8_t>(block.scales[j]);
        unit[layout.scales_offset + 16 * j + lane] = static_cast<uint8_t>(joined ? scale | (block.mins[j] << 4) : scale);
        if (format.has_min && !joined) unit[layout.mins_offset + 16 * j + lane] = block.mins[j];
    }
}

void read_scales(const WeightFormat& format, const TileLayout& layout, const uint8_t* unit, int lane,
                 Block& block) {
    memcpy(&block.d, unit + layout.d_offset + 2 * lane, 2);
    if (format.has_min) memcpy(&block.m, unit + layout.m_offset + 2 * lane, 2);
    if (format.block_elements != 256) return;
    const bool joined = format.type == WeightType::kQ2_K;
    for (int j = 0; j < 256 / format.sub_block; ++j) {
        const uint8_t scale = unit[layout.scales_offset + 16 * j + lane];
        block.scales[j] = static_cast<int8_t>(joined ? scale & 15 : scale);
        if (format.has_min) block.mins[j] = joined ? scale >> 4 : unit[layout.mins_offset + 16 * j + lane];
    }
}

template <typename Number>
void pack_numbers(const uint8_t* raw, int64_t rows, int64_t k, uint8_t* out) {
    constexpr size_t kBytes = sizeof(Number);
    for (int64_t i = 0; i < k; ++i) {
        for (int64_t lane = 0; lane < rows; ++lane) {
            memcpy(out + (kTileRows * i + lane) * kBytes, raw + (lane * k + i) * kBytes, kBytes);
        }
    }
}

}  // namespace

int64_t packed_tile_bytes(const WeightFormat& format, int64_t k) {
    const TileLayout layout = tile_layout(format);
    return k / layout.unit_elements * layout.unit_bytes;
}

void pack_tile(const WeightFormat& format, const uint8_t* raw, int64_t n, int64_t k, int64_t tile, uint8_t* out) {
    const int64_t first = tile * kTileRows;
    const int64_t rows = n - first < kTileRows ? n - first : kTileRows;
    const int64_t stride = row_bytes(format, k);
    raw += first * stride;
    if (rows < kTileRows) memset(out, 0, static_cast<size_t>(packed_tile_bytes(format, k)));
    if (format.type == WeightType::kF32) return pack_numbers<uint32_t>(raw, rows, k, out);
    if (format.bits == 0) return pack_numbers<uint16_t>(raw, rows, k, out);
    const TileLayout layout = tile_layout(format);
    Block block = {};
    for (int64_t u = 0; u < k / layout.unit_elements; ++u, out += layout.unit_bytes) {
        for (int lane = 0; lane < rows; ++lane) {
            take_apart(format, raw + lane * stride + u * format.block_bytes, block);
            for (int g = 0; g < layout.unit_elements / kGroup; ++g) {
                write_planes(format.bits, block.words + kQuads * g, lane, out + g * layout.planes_bytes);
            }
            write_scales(format, layout, block, lane, out);
        }
    }
}

void unpack_row(const PackedMatrix& w, int64_t row, float* out) {
    const WeightFormat& format = *find_format(w.type);
    const TileLayout layout = tile_layout(format);
    const uint8_t* tile = w.data + row / kTileRows * w.tile_bytes;
    const int lane = static_cast<int>(row % kTileRows);
    if (format.bits == 0) {
        for (int64_t i = 0; i < w.k; ++i) {
            dequantize_row(format, tile + (kTileRows * i + lane) * format.block_bytes, 1, 1.0f, out + i);
        }
        return;
    }
    for (int64_t u = 0; u < w.k / layout.unit_elements; ++u, tile += layout.unit_bytes) {
        Block block = {};
        for (int g = 0; g < layout.unit_elements / kGroup; ++g) {
            read_planes(format.bits, tile + g * layout.planes_bytes, lane, block.words + kQuads * g);
        }
        read_scales(format, layout, tile, lane, block);
        dequantize_block(format, block, out + u * layout.unit_elements);
    }
}

}  // namespace kokuban
