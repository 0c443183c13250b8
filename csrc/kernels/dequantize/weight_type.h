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

constexpr WeightFormat kFormats[] = {
    {WeightType::kF32, "F32", 1, 4, 0, 0, 0, false},
    {WeightType::kF16, "F16", 1, 2, 0, 0, 0, false},
    {WeightType::kBF16, "BF16", 1, 2, 0, 0, 0, false},
    {WeightType::kQ4_0, "Q4_0", 32, 18, 4, 32, 8, false},
    {WeightType::kQ4_1, "Q4_1", 32, 20, 4, 32, 0, true},
    {WeightType::kQ5_0, "Q5_0", 32, 22, 5, 32, 16, false},
    {WeightType::kQ5_1, "Q5_1", 32, 24, 5, 32, 0, true},
    {WeightType::kQ8_0, "Q8_0", 32, 34, 8, 32, 128, false},
    {WeightType::kQ2_K, "Q2_K", 256, 84, 2, 16, 0, true},
    {WeightType::kQ3_K, "Q3_K", 256, 110, 3, 16, 4, false},
    {WeightType::kQ4_K, "Q4_K", 256, 144, 4, 32, 0, true},
    {WeightType::kQ5_K, "Q5_K", 256, 176, 5, 32, 0, true},
    {WeightType::kQ6_K, "Q6_K", 256, 210, 6, 16, 32, false},
};

constexpr bool is_quantized(const WeightFormat& format) { return format.bits != 0; }

// The format of a type; nullptr for a number that is not in the table.
constexpr const WeightFormat* find_format(WeightType type) {
    for (const WeightFormat& format : kFormats) {
        if (format.type == type) return &format;
    }
    return nullptr;
}

}  // namespace kokuban
