#include "kernels/dequantize/block.h"

#include <string.h>

namespace kokuban {
namespace {

// Codes are handled four at a time, as the bytes of a word: four neighbours in the file are four
// neighbours in the row in every format.
constexpr uint32_t kLow1 = 0x01010101, kLow2 = 0x03030303, kLow4 = 0x0f0f0f0f;

uint32_t load_u32(const uint8_t* p) {
    uint32_t x;
    memcpy(&x, p, 4);
    return x;
}

uint16_t load_u16(const uint8_t* p) {
    uint16_t x;
    memcpy(&x, p, 2);
    return x;
}

// Bit i of the low four to bit 0 of byte i.
uint32_t spread_bits(uint32_t bits) { return ((bits & 15) * 0x00204081) & kLow1; }

// 32 nibbles: the low ones of 16 bytes, then the high ones.
void take_nibbles_32(const uint8_t* qs, uint32_t* words) {
    for (int i = 0; i < 4; ++i) {
        const uint32_t pairs = load_u32(qs + 4 * i);
        words[i] = pairs & kLow4;
        words[4 + i] = (pairs >> 4) & kLow4;
    }
}

void add_fifth_bits_32(const uint8_t* qh, uint32_t* words) {
    const uint32_t bits = load_u32(qh);
    for (int i = 0; i < 8; ++i) words[i] |= spread_bits(bits >> (4 * i)) << 4;
}

void take_q8_0(const uint8_t* qs, uint32_t* words) {
    for (int i = 0; i < 8; ++i) words[i] = load_u32(qs + 4 * i) ^ 0x80808080;  // plus 128
}

// 256 codes of two bits: a run of 32 bytes holds four runs of 32 elements, lowest bits first.
void take_pairs_256(const uint8_t* qs, uint32_t* words) {
    for (int run = 0; run < 8; ++run) {
        const uint8_t* bytes = qs + 32 * (run / 4);
        for (int i = 0; i < 8; ++i) words[8 * run + i] = (load_u32(bytes + 4 * i) >> (2 * (run % 4))) & kLow2;
    }
}

// 256 codes of four bits: a run of 32 bytes holds two runs of 32 elements, low nibbles first.
void take_nibbles_256(const uint8_t* qs, uint32_t* words) {
    for (int run = 0; run < 8; ++run) {
        const uint8_t* bytes = qs + 32 * (run / 2);
        for (int i = 0; i < 8; ++i) words[8 * run + i] = (load_u32(bytes + 4 * i) >> (4 * (run % 2))) & kLow4;
    }
}

// One more bit for 256 codes: bit j of byte i belongs to element 32 j + i.
void add_bits_256(const uint8_t* bits, int position, uint32_t* words) {
    for (int run = 0; run < 8; ++run) {
        for (int i = 0; i < 8; ++i) words[8 * run + i] |= ((load_u32(bits + 4 * i) >> run) & kLow1) << position;
    }
}

// Q6_K: within each half of 128, elements 64 apart share a byte of ql, elements 32 apart one of qh.
void take_q6_k(const uint8_t* ql, const uint8_t* qh, uint32_t* words) {
    for (int run = 0; run < 8; ++run) {
        const int half = run / 4, quarter = run % 4;
        const uint8_t* low = ql + 64 * half + 32 * (quarter % 2);
        const uint8_t* high = qh + 32 * half;
        for (int i = 0; i < 8; ++i) {
            const uint32_t four = (load_u32(low + 4 * i) >> (4 * (quarter / 2))) & kLow4;
            const uint32_t two = (load_u32(high + 4 * i) >> (2 * quarter)) & kLow2;
            words[8 * run + i] = four | (two << 4);
        }
    }
}

// Q4_K and Q5_K: eight scales and eight minima of six bits in twelve bytes.
void take_scales_6_bits(const uint8_t* packed, Block& block) {
    for (int i = 0; i < 4; ++i) {
        block.scales[i] = static_cast<int8_t>(packed[i] & 63);
        block.mins[i] = packed[4 + i] & 63;
        block.scales[4 + i] = static_cast<int8_t>((packed[8 + i] & 15) | ((packed[i] >> 6) << 4));
        block.mins[4 + i] = static_cast<uint8_t>((packed[8 + i] >> 4) | ((packed[4 + i] >> 6) << 4));
    }
}

// Q3_K: sixteen scales of six bits, less 32, in twelve bytes.
void take_scales_q3_k(const uint8_t* packed, Block& block) {
    for (int i = 0; i < 16; ++i) {
        const int low = (packed[i % 8] >> (4 * (i / 8))) & 15;
        const int high = (packed[8 + i % 4] >> (2 * (i / 4))) & 3;
        block.scales[i] = static_cast<int8_t>((low | (high << 4)) - 32);
    }
}

void take_scales_q2_k(const uint8_t* packed, Block& block) {
    for (int i = 0; i < 16; ++i) {
        block.scales[i] = packed[i] & 15;
        block.mins[i] = packed[i] >> 4;
    }
}

void take_32(WeightType type, const uint8_t* raw, Block& block) {
    block.d = load_u16(raw);
    block.m = 0;
    switch (type) {
        case WeightType::kQ4_0:
            take_nibbles_32(raw + 2, block.words);
            break;
        case WeightType::kQ4_1:
            block.m = load_u16(raw + 2);
            take_nibbles_32(raw + 4, block.words);
            break;
        case WeightType::kQ5_0:
            take_nibbles_32(raw + 6, block.words);
            add_fifth_bits_32(raw + 2, block.words);
            break;
        case WeightType::kQ5_1:
            block.m = load_u16(raw + 2);
            take_nibbles_32(raw + 8, block.words);
            add_fifth_bits_32(raw + 4, block.words);
            break;
        default:
            take_q8_0(raw + 2, block.words);
    }
}

void take_256(WeightType type, const uint8_t* raw, Block& block) {
    block.m = 0;
    switch (type) {
        case WeightType::kQ2_K:
            take_scales_q2_k(raw, block);
            take_pairs_256(raw + 16, block.words);
            block.d = load_u16(raw + 80);
            block.m = load_u16(raw + 82);
            break;
        case WeightType::kQ3_K:
            // A set bit of the mask means that 4 is not taken off: with bias 4 it adds 4.
            take_pairs_256(raw + 32, block.words);
            add_bits_256(raw, 2, block.words);
            take_scales_q3_k(raw + 96, block);
            block.d = load_u16(raw + 108);
            break;
        case WeightType::kQ6_K:
            take_q6_k(raw, raw + 128, block.words);
            memcpy(block.scales, raw + 192, 16);
            block.d = load_u16(raw + 208);
            break;
        default:  // Q4_K, Q5_K
            block.d = load_u16(raw);
            block.m = load_u16(raw + 2);
            take_scales_6_bits(raw + 4, block);
            if (type == WeightType::kQ4_K) {
                take_nibbles_256(raw + 16, block.words);
            } else {
                take_nibbles_256(raw + 48, block.words);
                add_bits_256(raw + 16, 4, block.words);
            }
    }
}

}  // namespace

void take_apart(const WeightFormat& format, const uint8_t* raw, Block& block) {
    if (format.block_elements == 32) {
        take_32(format.type, raw, block);
    } else {
        take_256(format.type, raw, block);
    }
}

}  // namespace kokuban
