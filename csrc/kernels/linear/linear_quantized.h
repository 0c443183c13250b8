// The product for quantised W, over the sixteen-lane operations and one dot header. Included by
// each variant after both.
#pragma once

#include "kernels/linear/groups.h"
#include "kernels/linear/quantize_rows.h"

namespace kokuban {
namespace {

constexpr int kChunkGroups = 16;  // unpacked at a time: 12 KB, in L1 beside the activations
constexpr int64_t kMaxBlockRows = 128;  // rows whose accumulators lie in scratch memory: 8 KB

// acc[r] += this half of the group times x[r], by the order rule of linear.h.
template <class Shape, int kHalf, int kRows, class Group>
KOKUBAN_INLINE void add_half(const Group& w, const QuantizedGroup* x, F32 (&acc)[kRows]) {
    constexpr int kQuads = 8 / Shape::kHalves;
    I32 dot[kRows];
    dot_quads<Shape::kBits, Shape::kBias, kHalf * kQuads, kQuads>(w, x, dot);
    const F32 scale = w.scale(kHalf);
    for (int r = 0; r < kRows; ++r) {
        acc[r] = f_fma(f_mul(scale, f_set1(x[r].d)), f_from_i(dot[r]), acc[r]);
        if constexpr (Shape::kHasMin) {
            const int32_t sum = kHalf == 0 ? x[r].half_sum() : x[r].sum - x[r].half_sum();
            const float d_sum = Shape::kHalves == 1 ? x[r].d_sum : x[r].d * static_cast<float>(sum);
            acc[r] = f_fma(w.offset(kHalf), f_set1(d_sum), acc[r]);
        }
    }
}

// acc [kRows][16] += kRows rows of x times num_groups groups. The records of a group's rows lie
// side by side at x; the next group's are x_step records on.
template <class Shape, int kRows, class Groups>
void add_groups(const Groups& w, int64_t num_groups, const QuantizedGroup* x, int64_t x_step, float* sums) {
    F32 acc[kRows];
    for (int r = 0; r < kRows; ++r) acc[r] = f_load(sums + kTileRows * r);
    for (int64_t g = 0; g < num_groups; ++g, x += x_step) {
        w.prefetch(g);
        const auto group = w.group(g);
        add_half<Shape, 0>(group, x, acc);
        if constexpr (Shape::kHalves == 2) add_half<Shape, 1>(group, x, acc);
    }
    for (int r = 0; r < kRows; ++r) f_store(sums + kTileRows * r, acc[r]);
}

// The same for any number of rows up to a row block.
template <class Shape, int kRows, class Groups>
void add_row_block(const Groups& w, int64_t num_groups, const QuantizedGroup* x, int64_t x_step, int64_t rows,
                   float* sums) {
    while (rows >= kRows) {
        add_groups<Shape, kRows>(w, num_groups, x, x_step, sums);
        x += kRows;
        sums += kRows * kTileRows;
        rows -= kRows;
    }
    if constexpr (kRows > 1) {
        if (rows > 0) add_row_block<Shape, kRows - 1>(w, num_groups, x, x_step, rows, sums);
    }
}

// Adds the groups from `first` on to the sums of all rows [row_begin, row_end).
template <class Shape, class Groups>
void add_rows(const Groups& w, int64_t first, int64_t num_groups, const LinearInput& input, int64_t groups,
              int64_t row_begin, int64_t row_end, float* sums) {
    for (int64_t row = row_begin; row < row_end; row += kRowBlock) {
        const RowPlace place = row_place(row, input.rows, groups);
        const int64_t rows = row_end - row < kRowBlock ? row_end - row : kRowBlock;
        add_row_block<Shape, kMaxRows>(w, num_groups, input.quantized.groups + place.first + first * place.step,
                                       place.step, rows, sums + kTileRows * (row - row_begin));
    }
}

// Rows [row_begin, row_end), at most kMaxBlockRows, by one tile.
template <WeightType kType>
void quantized_tile(const PackedMatrix& w, const LinearInput& input, int64_t tile, int64_t row_begin,
                    int64_t row_end, float* sums, uint8_t* codes) {
    using Shape = Format<kType>::Shape;
    const int64_t groups = w.k / kGroup;
    const PackedGroups<kType> packed = {w.data + tile * w.tile_bytes};
    constexpr int kFused = fused_rows(Shape::kBits);
    if constexpr (kFused > 0) {
        if (row_end - row_begin <= kFused) {
            return add_rows<Shape>(packed, 0, groups, input, groups, row_begin, row_end, sums);
        }
    }
    const ScratchGroups scratch = {codes};
    for (int64_t first = 0; first < groups; first += kChunkGroups) {
        const int64_t count = groups - first < kChunkGroups ? groups - first : kChunkGroups;
        for (int64_t g = 0; g < count; ++g) {
            packed.prefetch(first + g);
            unpack_group<kType>(packed.group(first + g), scratch.group(g));
        }
        add_rows<Shape>(scratch, first, count, input, groups, row_begin, row_end, sums);
    }
}

}  // namespace
}  // namespace kokuban
