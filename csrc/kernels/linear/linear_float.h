// The product for F32, F16 and BF16 W, over the sixteen-lane operations. Included by each variant
// after its dot header.
#pragma once

#include "kernels/linear/linear.h"

namespace kokuban {
namespace {

constexpr int kChunkInputs = 256;  // of a tile, as f32: 16 KB, in L1 for all rows

template <WeightType kType>
struct FloatTile {
    static constexpr int kStep = kTileRows * (kType == WeightType::kF32 ? 4 : 2);  // bytes of one input
    const uint8_t* data;

    __attribute__((always_inline)) F32 input(int64_t i) const {
        const uint8_t* p = data + i * kStep;
        if constexpr (kType == WeightType::kF32) return f_load(reinterpret_cast<const float*>(p));
        if constexpr (kType == WeightType::kF16) return f_load_f16(reinterpret_cast<const uint16_t*>(p));
        if constexpr (kType == WeightType::kBF16) return f_load_bf16(reinterpret_cast<const uint16_t*>(p));
    }
};

// sums[tile][row][16] += kRows rows of x times kTiles tiles, over `inputs` inputs. Tiles are
// tile_step bytes apart, their sums sums_step floats.
template <WeightType kType, int kRows, int kTiles>
void add_inputs(const uint8_t* tile, int64_t tile_step, int64_t inputs, const float* x, int64_t x_stride,
                float* sums, int64_t sums_step) {
    F32 acc[kTiles][kRows];
    for (int t = 0; t < kTiles; ++t) {
        for (int r = 0; r < kRows; ++r) acc[t][r] = f_load(sums + t * sums_step + kTileRows * r);
    }
    for (int64_t i = 0; i < inputs; ++i) {
        for (int t = 0; t < kTiles; ++t) {
            const F32 w = FloatTile<kType>{tile + t * tile_step}.input(i);
            for (int r = 0; r < kRows; ++r) acc[t][r] = f_fma(w, f_set1(x[r * x_stride + i]), acc[t][r]);
        }
    }
    for (int t = 0; t < kTiles; ++t) {
        for (int r = 0; r < kRows; ++r) f_store(sums + t * sums_step + kTileRows * r, acc[t][r]);
    }
}

// Any number of rows by kTiles tiles, kRows at a time.
template <WeightType kType, int kRows, int kTiles>
void add_float_rows(const uint8_t* tile, int64_t tile_step, int64_t inputs, const float* x, int64_t x_stride,
                    int64_t rows, float* sums, int64_t sums_step) {
    while (rows >= kRows) {
        add_inputs<kType, kRows, kTiles>(tile, tile_step, inputs, x, x_stride, sums, sums_step);
        x += kRows * x_stride;
        sums += kRows * kTileRows;
        rows -= kRows;
    }
    if constexpr (kRows > 1) {
        if (rows > 0) {
            add_float_rows<kType, kRows / 2, kTiles>(tile, tile_step, inputs, x, x_stride, rows, sums, sums_step);
        }
    }
}

// Few rows: each weight is read once, several tiles side by side hide the latency of the sums.
template <WeightType kType, int kTiles>
KOKUBAN_INLINE void few_float_rows(const PackedMatrix& w, const LinearInput& input, int64_t tile,
                                   int64_t row_begin, int64_t row_end, float* sums, int64_t sums_step) {
    constexpr int kRows = kFloatChains / kTiles;
    add_float_rows<kType, kRows, kTiles>(w.data + tile * w.tile_bytes, w.tile_bytes, w.k,
                                         input.x + row_begin * input.x_stride, input.x_stride,
                                         row_end - row_begin, sums, sums_step);
}

// Many rows by one tile: chunk by chunk, each as f32 in L1.
template <WeightType kType>
void many_float_rows(const PackedMatrix& w, const LinearInput& input, int64_t tile, int64_t row_begin,
                     int64_t row_end, float* sums, float* chunk) {
    const FloatTile<kType> packed = {w.data + tile * w.tile_bytes};
    for (int64_t first = 0; first < w.k; first += kChunkInputs) {
        const int64_t count = w.k - first < kChunkInputs ? w.k - first : kChunkInputs;
        const uint8_t* inputs = packed.data + first * FloatTile<kType>::kStep;
        if constexpr (kType != WeightType::kF32) {
            for (int64_t i = 0; i < count; ++i) f_store(chunk + kTileRows * i, packed.input(first + i));
            inputs = reinterpret_cast<const uint8_t*>(chunk);
        }
        add_float_rows<WeightType::kF32, kMaxFloatRows, 1>(inputs, 0, count,
                                                           input.x + row_begin * input.x_stride + first,
                                                           input.x_stride, row_end - row_begin, sums, 0);
    }
}

}  // namespace
}  // namespace kokuban
