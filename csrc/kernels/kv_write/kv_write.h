// Stores K and V of tokens in the pool, each at its slot, in the layout of kv_layout.h.
//
//   k, v    rows [begin, end) of num_kv_heads * head_dim columns: head h in columns h * D up to (h + 1) * D
//   slots   [rows] int64: block id * S + offset in the block. No two rows have the same slot.
//   layer   index of the layer in its group
//   k_offset  [num_kv_heads * head_dim] or null; other dtypes than int8 do not read it
//
// bf16, fp16: values are rounded to nearest even; what is too large becomes infinite, NaN stays NaN.
//
// int8, fp8_e4m3: each token's K of one head, and its V, has a float32 scale of its own:
//
//   scale   largest |x| of the D elements / 127 (int8) or / 448 (e4m3), and at least 2^-126: a row of
//           zeros gives zeros, and nothing is ever divided by a scale that vanished
//   code    x / scale, rounded to nearest even. The largest element takes the largest code.
//
// The x of an int8 K are H (y / n) of rotation.h, where y is k less k_offset. An offset is the same for
// all tokens of a layer, so it moves all scores of a row alike, and the softmax does not see it.
//
// A row that holds an infinity or a NaN gets the scale NaN (0x7fc00000) and codes 0: whoever reads any
// of it sees that it is not finite.
//
// A token writes its own elements and nothing else, so rows can be split over threads anyhow. Same
// bytes on every instruction set.
#pragma once

#include "common/isa.h"
#include "common/matrix.h"
#include "kernels/kv_write/kv_layout.h"

namespace kokuban {

struct KvWriteKernels {
    void (*kv_write)(const KvLayout& layout, uint8_t* pool, int64_t layer, ConstMatrix k,
                     ConstMatrix v, const float* k_offset, const int64_t* slots, int64_t begin,
                     int64_t end);
};

extern const KvWriteKernels kv_write_scalar, kv_write_avx2, kv_write_avx512;

const KvWriteKernels& kv_write_kernels(Isa isa);

}  // namespace kokuban
