// How a weight matrix is stored in a model file: the types under their numbers in GGUF.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace kokuban {

enum class WeightType : int {
    kF32 = 0,
    kF16 = 1,
    kQ4_0 = 2,
    kQ4_1 = 3,
    kQ5_0 = 6,
    kQ5_1 = 7,
    kQ8_0 = 8,
    kQ2_K = 10,
    kQ3_K = 11,
    kQ4_K = 12,
    kQ5_K = 13,
    kQ6_K = 14,
    kBF16 = 30,
};

// What the types differ in. A weight is s * (code - bias), or s * code + o where has_min; s and o
// hold for `sub_block` consecutive elements of a row.
struct WeightFormat {
    WeightType type;
    const char* name;
    int block_elements;  // consecutive elements of a row that lie together in the file: 1, 32, 256
    int block_bytes;     // of such a block, scales included
    int bits;            // of a code; 0 for types that are numbers by themselves
    int sub_block;       // 16 or 32
    int bias;            // 0, or a power of two
    bool has_min;
};

// The format under a GGUF number; nullptr for a type that is not in the table.
const WeightFormat* find_format(int type);

inline bool is_quantized(const WeightFormat& format) { return format.bits != 0; }

}  // namespace kokuban
