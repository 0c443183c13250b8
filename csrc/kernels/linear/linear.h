// out[t, j] = sum_i x[t, i] * W[j, i] (+ bias[j]) (+ what out[t, j] held before)
//
//   W      [n, k] in any type of weight_type.h, packed once by pack.h: PackedMatrix
//   x      [rows, k] f32; for quantised W as int8 in groups of 32 (QuantizedRows), for F32, F16 and
//          BF16 W as it is
//   out    [rows, n] f32, any row stride >= n: a range of columns of a wider matrix will do. It
//          must not overlap x, W or the scratch memory
//   bias   [n] f32 or null
//
// Activations. quantize_rows turns each run of 32 elements of a row into int8: with amax the
// largest magnitude, q = round to nearest even(x * (127 / amax)) and d = amax / 127, in f32.
// Runs with amax < 1e-30 become zeros. A run that holds a NaN or an infinity gets d = NaN, so that
// every output of that row becomes NaN and no other row's.
//
// Order rule. Each output has one f32 accumulator, from 0, over ascending sub-blocks (of 32 inputs,
// or of 16 where the format's scales hold for 16). With dot = the exact integer sum of
// (code - bias) * q over the sub-block, and sum = the integer sum of q:
//     acc = fma(s * d, float(dot), acc)
//     acc = fma(o, d * float(sum), acc)       formats with a minimum only
// where s and o are the sub-block's f32 scale and offset (block.h). F32, F16 and BF16 weights:
// acc = fma(w, x, acc) over ascending i. Then acc += bias, then acc += the old out. All variants,
// numbers of rows and splits of the work give the same bits.
//
// Sizes: n > 0, rows >= 0; k a multiple of 32, of 256 for K-quants, any k > 0 for unquantised W.
// Allocates nothing, starts no thread: the caller spreads `linear_items` items over its workers.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "common/isa.h"
#include "kernels/dequantize/weight_type.h"

namespace kokuban {

constexpr int kTileRows = 16;   // rows of W in a tile
constexpr int kRowBlock = 8;    // rows of x whose quantised groups lie together
constexpr int kGroup = 32;      // elements of x under one scale

// W, packed. Tile t holds rows 16 t up to 16 t + 15; rows from n on are zero. Owns nothing.
struct PackedMatrix {
    WeightType type;
    int64_t n, k;
    int64_t tile_bytes;
    const uint8_t* data;  // 64-byte aligned, tiles() * tile_bytes bytes

    int64_t tiles() const { return (n + kTileRows - 1) / kTileRows; }
};

// Whether x has to be quantised for this W.
bool takes_quantized(const PackedMatrix& w);

// 32 elements of one row of x.
struct QuantizedGroup {
    int8_t q[kGroup];
    float d;           // x is about d * q
    float d_sum;       // d * float(sum)
    int32_t sum;       // of all 32 q
    // Of the first and of the last 16: the sums of those q whose place modulo 4 is 0 or 1, and 2 or 3.
    int16_t pair_sums[2][2];

    // Of the first 16. Inlined always: no variant may leave a copy of it for the others.
    __attribute__((always_inline)) int32_t half_sum() const { return pair_sums[0][0] + pair_sums[0][1]; }
};

// Order in memory: [row block of 8][group][row of the block]; the last block may have fewer rows.
// Several matrices may read the same one.
struct QuantizedRows {
    const QuantizedGroup* groups;  // rows * k / 32 of them, any alignment of a float
};

inline size_t quantized_bytes(int64_t rows, int64_t k) {
    return static_cast<size_t>(rows * (k / kGroup)) * sizeof(QuantizedGroup);
}

struct LinearInput {
    int64_t rows;
    const float* x;      // row t at x + t * x_stride; read for unquantised W only
    int64_t x_stride;
    QuantizedRows quantized;  // read for quantised W only
};

struct LinearOutput {
    float* out;  // row t at out + t * stride
    int64_t stride;
    const float* bias;
    bool add;  // add to what out holds, instead of replacing it
};

// A piece of the output: rows of x by tiles of W. row_begin is a multiple of kRowBlock.
struct LinearRange {
    int64_t tile_begin, tile_end;
    int64_t row_begin, row_end;
};

// How to cut a product: item i of linear_items(w, rows) is the piece linear_range(w, rows, i).
// Consecutive items share rows of x, so that these stay in a worker's cache.
int64_t linear_items(const PackedMatrix& w, int64_t rows);
LinearRange linear_range(const PackedMatrix& w, int64_t rows, int64_t item);

// Scratch memory that each worker hands to `linear`, 64-byte aligned; its content means nothing.
constexpr size_t kLinearScratchBytes = 64 * 1024;

struct LinearKernels {
    // Quantises rows row_begin up to row_end of x [rows, k]; pieces may run at the same time.
    void (*quantize_rows)(const float* x, int64_t x_stride, int64_t rows, int64_t k, int64_t row_begin,
                          int64_t row_end, QuantizedGroup* out);
    void (*linear)(const PackedMatrix& w, const LinearInput& input, const LinearOutput& output,
                   const LinearRange& range, void* scratch);
};

// The best variant that the level can run.
const LinearKernels& linear_kernels(Isa isa);

}  // namespace kokuban
