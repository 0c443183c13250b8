// The product for every type, from the pieces of linear_quantized.h and linear_float.h. Included by
// each variant after its dot header.
#pragma once

#include "kernels/linear/linear_float.h"
#include "kernels/linear/linear_quantized.h"

namespace kokuban {
namespace {

// The scratch memory of one call.
struct alignas(64) Scratch {
    float sums[kMaxBlockRows * kTileRows];
    union {
        uint8_t codes[kChunkGroups * ScratchGroup::kBytes];
        float inputs[kChunkInputs * kTileRows];
    };
};
static_assert(sizeof(Scratch) <= kLinearScratchBytes);

// Bias and old output, then the store of one tile's sums.
void finish_tile(const PackedMatrix& w, const LinearOutput& output, int64_t tile, int64_t row_begin,
                 int64_t row_end, const float* sums) {
    const int64_t column = tile * kTileRows;
    const int count = static_cast<int>(w.n - column < kTileRows ? w.n - column : kTileRows);
    const F32 bias = output.bias ? f_load_n(output.bias + column, count) : f_zero();
    for (int64_t row = row_begin; row < row_end; ++row, sums += kTileRows) {
        float* out = output.out + row * output.stride + column;
        F32 sum = f_load(sums);
        if (output.bias) sum = f_add(sum, bias);
        if (output.add) sum = f_add(sum, f_load_n(out, count));
        f_store_n(out, sum, count);
    }
}

KOKUBAN_INLINE void clear_sums(float* sums, int64_t rows) {
    memset(sums, 0, static_cast<size_t>(rows * kTileRows) * sizeof(float));
}

template <WeightType kType>
void quantized_block(const PackedMatrix& w, const LinearInput& input, const LinearOutput& output,
                     const LinearRange& block, Scratch& scratch) {
    for (int64_t tile = block.tile_begin; tile < block.tile_end; ++tile) {
        clear_sums(scratch.sums, block.row_end - block.row_begin);
        quantized_tile<kType>(w, input, tile, block.row_begin, block.row_end, scratch.sums, scratch.codes);
        finish_tile(w, output, tile, block.row_begin, block.row_end, scratch.sums);
    }
}

template <WeightType kType, int kTiles>
void few_float_block(const PackedMatrix& w, const LinearInput& input, const LinearOutput& output,
                     const LinearRange& block, Scratch& scratch) {
    const int64_t rows = block.row_end - block.row_begin;
    int64_t tile = block.tile_begin;
    for (; tile + kTiles <= block.tile_end; tile += kTiles) {
        clear_sums(scratch.sums, kTiles * rows);
        few_float_rows<kType, kTiles>(w, input, tile, block.row_begin, block.row_end, scratch.sums, rows * kTileRows);
        for (int t = 0; t < kTiles; ++t) {
            finish_tile(w, output, tile + t, block.row_begin, block.row_end, scratch.sums + t * rows * kTileRows);
        }
    }
    if constexpr (kTiles > 1) {
        if (tile < block.tile_end) {
            few_float_block<kType, kTiles / 2>(w, input, output, {tile, block.tile_end, block.row_begin, block.row_end},
                                               scratch);
        }
    }
}

template <WeightType kType>
void float_block(const PackedMatrix& w, const LinearInput& input, const LinearOutput& output,
                 const LinearRange& block, Scratch& scratch) {
    const int64_t rows = block.row_end - block.row_begin;
    if (rows == 1) return few_float_block<kType, kFloatChains>(w, input, output, block, scratch);
    if (rows <= kFloatChains / 2) return few_float_block<kType, kFloatChains / 2>(w, input, output, block, scratch);
    if (rows <= kMaxFloatRows) return few_float_block<kType, 1>(w, input, output, block, scratch);
    for (int64_t tile = block.tile_begin; tile < block.tile_end; ++tile) {
        clear_sums(scratch.sums, rows);
        many_float_rows<kType>(w, input, tile, block.row_begin, block.row_end, scratch.sums, scratch.inputs);
        finish_tile(w, output, tile, block.row_begin, block.row_end, scratch.sums);
    }
}

void linear_block(const PackedMatrix& w, const LinearInput& input, const LinearOutput& output,
                  const LinearRange& block, Scratch& scratch) {
    switch (w.type) {
        case WeightType::kF32: return float_block<WeightType::kF32>(w, input, output, block, scratch);
        case WeightType::kF16: return float_block<WeightType::kF16>(w, input, output, block, scratch);
        case WeightType::kBF16: return float_block<WeightType::kBF16>(w, input, output, block, scratch);
        case WeightType::kQ4_0: return quantized_block<WeightType::kQ4_0>(w, input, output, block, scratch);
        case WeightType::kQ4_1: return quantized_block<WeightType::kQ4_1>(w, input, output, block, scratch);
        case WeightType::kQ5_0: return quantized_block<WeightType::kQ5_0>(w, input, output, block, scratch);
        case WeightType::kQ5_1: return quantized_block<WeightType::kQ5_1>(w, input, output, block, scratch);
        case WeightType::kQ8_0: return quantized_block<WeightType::kQ8_0>(w, input, output, block, scratch);
        case WeightType::kQ2_K: return quantized_block<WeightType::kQ2_K>(w, input, output, block, scratch);
        case WeightType::kQ3_K: return quantized_block<WeightType::kQ3_K>(w, input, output, block, scratch);
        case WeightType::kQ4_K: return quantized_block<WeightType::kQ4_K>(w, input, output, block, scratch);
        case WeightType::kQ5_K: return quantized_block<WeightType::kQ5_K>(w, input, output, block, scratch);
        case WeightType::kQ6_K: return quantized_block<WeightType::kQ6_K>(w, input, output, block, scratch);
    }
}

void linear(const PackedMatrix& w, const LinearInput& input, const LinearOutput& output, const LinearRange& range,
            void* scratch) {
    for (int64_t row = range.row_begin; row < range.row_end; row += kMaxBlockRows) {
        const int64_t end = row + kMaxBlockRows < range.row_end ? row + kMaxBlockRows : range.row_end;
        linear_block(w, input, output, {range.tile_begin, range.tile_end, row, end}, *static_cast<Scratch*>(scratch));
    }
}

}  // namespace
}  // namespace kokuban
