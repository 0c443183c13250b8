// Where the kernels read the codes and scales of a group from: the packed matrix, unpacked in
// registers (few rows of x), or scratch memory that holds them unpacked (many rows). Both give the
// same numbers. Included by each variant after its dot header.
#pragma once

#include "kernels/linear/layout.h"

namespace kokuban {
namespace {

// What the arithmetic depends on. Types of the same shape share their code for many rows.
template <int kCodeBits, int kSubBlocks, int kCodeBias, bool kMinimum>
struct Shape {
    static constexpr int kBits = kCodeBits;
    static constexpr int kHalves = kSubBlocks;  // sub-blocks of a group: 1 or 2
    static constexpr int kBias = kCodeBias;
    static constexpr bool kHasMin = kMinimum;
};

template <WeightType kType>
struct Format {
    static constexpr WeightFormat kFormat = *find_format(kType);
    static constexpr TileLayout kLayout = tile_layout(kFormat);
    static constexpr int kBits = kFormat.bits;
    static constexpr int kHalves = 32 / kFormat.sub_block;
    using Shape = kokuban::Shape<kBits, kHalves, kFormat.bias, kFormat.has_min>;
    static constexpr int kGroups = kFormat.block_elements / 32;  // of a unit
    static constexpr bool kNested = kFormat.block_elements == 256;
    static constexpr bool kJoined = kType == WeightType::kQ2_K;
    static constexpr bool kSignedScales = kType == WeightType::kQ3_K || kType == WeightType::kQ6_K;
};

template <int kBytes>
KOKUBAN_INLINE I32 load_vector(const uint8_t* p) {
    return i_load(reinterpret_cast<const int32_t*>(p + kBytes));
}

// Shifts bit kFrom to bit kTo in each byte; what crosses into a neighbour is for the caller to mask.
template <int kFrom, int kTo>
KOKUBAN_INLINE I32 move_bit(I32 x) {
    if constexpr (kFrom > kTo) return i_shr<kFrom - kTo>(x);
    if constexpr (kFrom < kTo) return i_shl<kTo - kFrom>(x);
    return x;
}

// The bits that a plane of kPlaneBits gives to quad kQuad, at bit kTo of each byte (layout.h).
template <int kPlaneBits, int kTo, int kQuad>
KOKUBAN_INLINE I32 plane_bits(const uint8_t* plane) {
    constexpr int kInVector = 8 / kPlaneBits;
    constexpr int32_t kMask = static_cast<int32_t>((((1u << kPlaneBits) - 1u) << kTo) * 0x01010101u);
    const I32 joined = load_vector<64 * (kQuad / kInVector)>(plane);
    return i_and(move_bit<kPlaneBits * (kQuad % kInVector), kTo>(joined), i_set1(kMask));
}

template <int kBits, int kQuad>
KOKUBAN_INLINE I32 unpack_quad(const uint8_t* planes) {
    static_assert(kBits == 2 || kBits == 3 || kBits == 4 || kBits == 5 || kBits == 6 || kBits == 8);
    if constexpr (kBits == 8) return load_vector<64 * kQuad>(planes);
    if constexpr (kBits == 4) return plane_bits<4, 0, kQuad>(planes);
    if constexpr (kBits == 5) {
        return i_or(plane_bits<4, 0, kQuad>(planes), plane_bits<1, 4, kQuad>(planes + 256));
    }
    if constexpr (kBits == 6) {
        return i_or(plane_bits<4, 0, kQuad>(planes), plane_bits<2, 4, kQuad>(planes + 256));
    }
    if constexpr (kBits == 2) return plane_bits<2, 0, kQuad>(planes);
    if constexpr (kBits == 3) {
        return i_or(plane_bits<2, 0, kQuad>(planes), plane_bits<1, 2, kQuad>(planes + 128));
    }
}

// A group in the packed matrix.
template <WeightType kType>
struct PackedGroup {
    using Format = kokuban::Format<kType>;
    const uint8_t* unit;
    int index;  // of the group in its unit

    template <int kQuad>
    __attribute__((always_inline)) I32 quad() const {
        return unpack_quad<Format::kBits, kQuad>(unit + index * Format::kLayout.planes_bytes);
    }

    __attribute__((always_inline)) F32 scale(int half) const {
        const F32 d = f_load_f16(reinterpret_cast<const uint16_t*>(unit + Format::kLayout.d_offset));
        if constexpr (!Format::kNested) return d;
        const uint8_t* scales = unit + Format::kLayout.scales_offset + 16 * (index * Format::kHalves + half);
        if constexpr (Format::kJoined) return f_mul(d, f_from_i(i_and(i_load_u8(scales), i_set1(15))));
        if constexpr (Format::kSignedScales) {
            return f_mul(d, f_from_i(i_load_i8(reinterpret_cast<const int8_t*>(scales))));
        }
        return f_mul(d, f_from_i(i_load_u8(scales)));
    }

    __attribute__((always_inline)) F32 offset(int half) const {
        const F32 m = f_load_f16(reinterpret_cast<const uint16_t*>(unit + Format::kLayout.m_offset));
        if constexpr (!Format::kNested) return m;
        const uint8_t* mins = unit + Format::kLayout.mins_offset + 16 * (index * Format::kHalves + half);
        const I32 minimum = Format::kJoined ? i_shr<4>(i_load_u8(mins)) : i_load_u8(mins);
        return f_mul(f_sub(f_zero(), m), f_from_i(minimum));
    }
};

// How far ahead of its use W is asked for. Hardware prefetches stop at each page: alone they cost a
// fifth (Q4_1) to a third (Q6_K) of the bandwidth of one row (Zen 3, timed as `kokuban bench kernels`
// does; 1 KiB is too little, 4 KiB gives no more).
constexpr int kPrefetchBytes = 2048;

template <WeightType kType>
struct PackedGroups {
    const uint8_t* tile;

    // Asks for what group g + kPrefetchBytes will read; beyond the end of W this does nothing.
    __attribute__((always_inline)) void prefetch(int64_t g) const {
        constexpr int kBytes = kokuban::Format<kType>::kLayout.unit_bytes / kokuban::Format<kType>::kGroups;
        const uint8_t* ahead = tile + g * kBytes + kPrefetchBytes;
        for (int line = 0; line < kBytes; line += 64) __builtin_prefetch(ahead + line);
    }

    __attribute__((always_inline)) PackedGroup<kType> group(int64_t g) const {
        using Format = kokuban::Format<kType>;
        return {tile + g / Format::kGroups * Format::kLayout.unit_bytes, static_cast<int>(g % Format::kGroups)};
    }
};

// A group in scratch memory: eight quads of whole bytes, then scale and offset of each half, f32.
struct ScratchGroup {
    static constexpr int kScales = 512, kOffsets = kScales + 2 * 64, kBytes = kOffsets + 2 * 64;
    uint8_t* at;

    template <int kQuad>
    __attribute__((always_inline)) I32 quad() const {
        return load_vector<64 * kQuad>(at);
    }
    // Byte i of a quad.
    __attribute__((always_inline)) int code(int quad_index, int i) const { return at[64 * quad_index + i]; }
    __attribute__((always_inline)) F32 scale(int half) const {
        return f_load(reinterpret_cast<const float*>(at + kScales + 64 * half));
    }
    __attribute__((always_inline)) F32 offset(int half) const {
        return f_load(reinterpret_cast<const float*>(at + kOffsets + 64 * half));
    }
};

struct ScratchGroups {
    uint8_t* memory;

    __attribute__((always_inline)) void prefetch(int64_t) const {}
    __attribute__((always_inline)) ScratchGroup group(int64_t g) const { return {memory + g * ScratchGroup::kBytes}; }
};

template <int kQuads, class Group>
KOKUBAN_INLINE void store_quads(const Group& from, uint8_t* to) {
    if constexpr (kQuads > 0) {
        store_quads<kQuads - 1>(from, to);
        i_store(reinterpret_cast<int32_t*>(to + 64 * (kQuads - 1)), from.template quad<kQuads - 1>());
    }
}

template <WeightType kType>
KOKUBAN_INLINE void unpack_group(const PackedGroup<kType>& from, const ScratchGroup& to) {
    using Format = kokuban::Format<kType>;
    store_quads<8>(from, to.at);
    for (int half = 0; half < Format::kHalves; ++half) {
        f_store(reinterpret_cast<float*>(to.at + ScratchGroup::kScales + 64 * half), from.scale(half));
        if constexpr (Format::kFormat.has_min) {
            f_store(reinterpret_cast<float*>(to.at + ScratchGroup::kOffsets + 64 * half), from.offset(half));
        }
    }
}

}  // namespace
}  // namespace kokuban
