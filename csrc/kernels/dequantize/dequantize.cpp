#include "kernels/dequantize/dequantize.h"

#include <string.h>

#include "simd/scalar.h"

namespace kokuban {

void dequantize_block(const WeightFormat& format, const Block& block, float* out) {
    const bool nested = format.block_elements == 256;
    const float d = half_to_float(block.d), m = half_to_float(block.m);
    for (int j = 0; j * format.sub_block < format.block_elements; ++j) {
        const float scale = nested ? d * static_cast<float>(block.scales[j]) : d;
        // x - m and x + -m are the same number.
        const float offset = nested ? -(m * static_cast<float>(block.mins[j])) : m;
        for (int i = j * format.sub_block; i < (j + 1) * format.sub_block; ++i) {
            const int code = static_cast<int>((block.words[i / 4] >> (8 * (i % 4))) & 255);
            const float product = scale * static_cast<float>(code - format.bias);
            out[i] = format.has_min ? product + offset : product;
        }
    }
}

namespace {

float load_number(WeightType type, const uint8_t* raw, int64_t i) {
    if (type == WeightType::kF32) {
        float x;
        memcpy(&x, raw + 4 * i, 4);
        return x;
    }
    uint16_t bits;
    memcpy(&bits, raw + 2 * i, 2);
    return type == WeightType::kF16 ? half_to_float(bits) : bfloat16_to_float(bits);
}

}  // namespace

void dequantize_row(const WeightFormat& format, const uint8_t* raw, int64_t k, float scale, float* out) {
    if (format.bits == 0) {
        for (int64_t i = 0; i < k; ++i) out[i] = scale * load_number(format.type, raw, i);
        return;
    }
    Block block = {};
    for (int64_t first = 0; first < k; first += format.block_elements, raw += format.block_bytes) {
        take_apart(format, raw, block);
        dequantize_block(format, block, out + first);
        for (int i = 0; i < format.block_elements; ++i) out[first + i] *= scale;
    }
}

}  // namespace kokuban
