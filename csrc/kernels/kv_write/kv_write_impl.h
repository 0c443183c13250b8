// KV writes over sixteen lanes. Included after one of simd/*.h; KOKUBAN_VARIANT is the name of the
// table to define.
#include "kernels/kv_write/kv_write.h"

#include "kernels/kv_write/rotation.h"

namespace {

using kokuban::KvDtype;
using kokuban::KvLayout;

// How each dtype is made of sixteen floats, and what lies together: elements in a K tile, tokens in V.
struct Bf16 {
    using Element = uint16_t;
    static constexpr int kKPair = 2, kVPair = 1;
    KOKUBAN_INLINE void store(Element* p, F32 x) { f_store_bf16(p, x); }
};
struct Fp16 {
    using Element = uint16_t;
    static constexpr int kKPair = 1, kVPair = 1;
    KOKUBAN_INLINE void store(Element* p, F32 x) { f_store_f16(p, x); }
};
struct Fp32 {
    using Element = float;
    static constexpr int kKPair = 1, kVPair = 1;
    KOKUBAN_INLINE void store(Element* p, F32 x) { f_store(p, x); }
};
// Of these the lanes are x / scale.
struct Int8 {
    using Element = int8_t;
    static constexpr int kKPair = 4, kVPair = 2;
    static constexpr float kLargest = 127.0f;
    KOKUBAN_INLINE void store(Element* p, F32 x) { i_store_i8(p, i_from_f(x)); }
};
struct Fp8E4m3 {
    using Element = int8_t;
    static constexpr int kKPair = 1, kVPair = 1;
    static constexpr float kLargest = 448.0f;
    KOKUBAN_INLINE void store(Element* p, F32 x) { i_store_i8(p, i_e4m3_from_f(x)); }
};

template <typename Dtype>
constexpr bool kScaled = sizeof(typename Dtype::Element) == 1;
template <typename Dtype>
constexpr bool kRotated = false;
template <>
constexpr bool kRotated<Int8> = true;

KOKUBAN_INLINE F32 load_some(const float* x, int n) { return n == kLanes ? f_load(x) : f_load_n(x, n); }

// The scale of a row of n elements; NaN when one of them is not finite.
template <typename Dtype>
KOKUBAN_INLINE float scale_of(const float* x, int64_t n) {
    F32 largest = f_zero(), poison = f_zero();
    for (int64_t d = 0; d < n; d += kLanes) {
        const F32 some = load_some(x + d, n - d < kLanes ? static_cast<int>(n - d) : kLanes);
        largest = f_max(largest, f_abs(some));
        poison = f_add(poison, f_mul(some, f_zero()));
    }
    if (f_reduce_add(poison) != 0.0f) return __builtin_nanf("");
    const float scale = f_reduce_max(largest) / Dtype::kLargest;
    return scale < 0x1p-126f ? 0x1p-126f : scale;
}

// Calls f(d, n, elements) for sixteen elements at a time, n of which count.
template <typename Dtype, typename Function>
KOKUBAN_INLINE void each_sixteen(const float* x, int64_t head_dim, float* scale, Function f) {
    if constexpr (kScaled<Dtype>) *scale = scale_of<Dtype>(x, head_dim);
    for (int64_t d = 0; d < head_dim; d += kLanes) {
        const int n = head_dim - d < kLanes ? static_cast<int>(head_dim - d) : kLanes;
        typename Dtype::Element some[kLanes];
        F32 values = load_some(x + d, n);
        if constexpr (kScaled<Dtype>) values = *scale > 0.0f ? f_div(values, f_set1(*scale)) : f_zero();
        Dtype::store(some, values);
        f(d, n, some);
    }
}

// Where one head of one token goes.
template <typename Element>
struct Place {
    Element *k_lane, *v_column;
    float *k_scale, *v_scale;
};

// Writes one head's K of one token into its lane of a tile and its V into its row.
template <typename Dtype>
KOKUBAN_INLINE void write_head(Place<typename Dtype::Element> to, const float* k, const float* v,
                               const float* k_offset, int64_t head_dim) {
    using Element = typename Dtype::Element;
    constexpr int kKPair = Dtype::kKPair, kVPair = Dtype::kVPair;
    float shifted[kokuban::kKvMaxHeadDim], rotated[kokuban::kKvMaxHeadDim];
    if constexpr (kRotated<Dtype>) {
        for (int64_t d = 0; d < head_dim; ++d) shifted[d] = k_offset ? k[d] - k_offset[d] : k[d];
        rotate(shifted, head_dim, rotated);
        k = rotated;
    }
    each_sixteen<Dtype>(k, head_dim, to.k_scale, [&](int64_t d, int n, const Element* some) {
        for (int i = 0; i < n; i += kKPair) {
            memcpy(to.k_lane + (d + i) * kokuban::kKvTile, some + i, kKPair * sizeof(Element));
        }
    });
    each_sixteen<Dtype>(v, head_dim, to.v_scale, [&](int64_t d, int n, const Element* some) {
        if constexpr (kVPair == 1) {
            memcpy(to.v_column + d, some, static_cast<size_t>(n) * sizeof(Element));
        } else {
            for (int i = 0; i < n; ++i) to.v_column[(d + i) * kVPair] = some[i];
        }
    });
}

template <typename Dtype>
KOKUBAN_INLINE void write_rows(const KvLayout& layout, uint8_t* layer_base, kokuban::ConstMatrix k,
                               kokuban::ConstMatrix v, const float* k_offset, const int64_t* slots,
                               int64_t begin, int64_t end) {
    using Element = typename Dtype::Element;
    constexpr int kKPair = Dtype::kKPair, kVPair = Dtype::kVPair;
    for (int64_t row = begin; row < end; ++row) {
        const int64_t block = slots[row] / layout.block_size, offset = slots[row] % layout.block_size;
        const int64_t tile = offset / kokuban::kKvTile, lane = offset % kokuban::kKvTile;
        const int64_t v_element = offset / kVPair * kVPair * layout.head_dim + offset % kVPair;
        for (int64_t head = 0; head < layout.num_kv_heads; ++head) {
            uint8_t* k_head = layer_base + block * layout.block_bytes + head * layout.head_bytes;
            uint8_t* v_head = k_head + layout.side_bytes;
            const int64_t column = head * layout.head_dim;
            write_head<Dtype>({reinterpret_cast<Element*>(k_head + tile * layout.tile_bytes) + lane * kKPair,
                               reinterpret_cast<Element*>(v_head) + v_element,
                               reinterpret_cast<float*>(k_head + layout.elements_bytes) + offset,
                               reinterpret_cast<float*>(v_head + layout.elements_bytes) + offset},
                              k.data + row * k.stride + column, v.data + row * v.stride + column,
                              k_offset ? k_offset + column : nullptr, layout.head_dim);
        }
    }
}

void kv_write(const KvLayout& layout, uint8_t* pool, int64_t layer, kokuban::ConstMatrix k,
              kokuban::ConstMatrix v, const float* k_offset, const int64_t* slots, int64_t begin,
              int64_t end) {
    uint8_t* base = pool + layer * layout.layer_bytes;
    switch (layout.dtype) {
        case KvDtype::kBf16: return write_rows<Bf16>(layout, base, k, v, k_offset, slots, begin, end);
        case KvDtype::kFp16: return write_rows<Fp16>(layout, base, k, v, k_offset, slots, begin, end);
        case KvDtype::kFp32: return write_rows<Fp32>(layout, base, k, v, k_offset, slots, begin, end);
        case KvDtype::kInt8: return write_rows<Int8>(layout, base, k, v, k_offset, slots, begin, end);
        case KvDtype::kFp8E4m3: return write_rows<Fp8E4m3>(layout, base, k, v, k_offset, slots, begin, end);
    }
}

}  // namespace

const kokuban::KvWriteKernels kokuban::KOKUBAN_VARIANT{kv_write};
