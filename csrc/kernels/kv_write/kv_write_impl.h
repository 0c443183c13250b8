// KV writes over sixteen lanes. Included after one of simd/*.h; KOKUBAN_VARIANT is the name of the
// table to define.
#include "kernels/kv_write/kv_write.h"

namespace {

using kokuban::KvDtype;
using kokuban::KvLayout;

// How each dtype is made of sixteen floats, and what lies together in a K tile.
struct Bf16 {
    using Element = uint16_t;
    static constexpr int kPair = 2;
    KOKUBAN_INLINE void store(Element* p, F32 x) { f_store_bf16(p, x); }
};
struct Fp16 {
    using Element = uint16_t;
    static constexpr int kPair = 1;
    KOKUBAN_INLINE void store(Element* p, F32 x) { f_store_f16(p, x); }
};
struct Fp32 {
    using Element = float;
    static constexpr int kPair = 1;
    KOKUBAN_INLINE void store(Element* p, F32 x) { f_store(p, x); }
};

// Writes one head's K of one token into its lane of a tile and its V into its row.
template <typename Dtype>
KOKUBAN_INLINE void write_head(typename Dtype::Element* k_lane, const float* k,
                               typename Dtype::Element* v_row, const float* v, int64_t head_dim) {
    using Element = typename Dtype::Element;
    constexpr int kPair = Dtype::kPair;
    for (int64_t d = 0; d < head_dim; d += kLanes) {
        const int n = head_dim - d < kLanes ? static_cast<int>(head_dim - d) : kLanes;
        Element some[kLanes];
        Dtype::store(some, n == kLanes ? f_load(k + d) : f_load_n(k + d, n));
        for (int i = 0; i < n; i += kPair) {
            memcpy(k_lane + (d + i) * kokuban::kKvTile, some + i, kPair * sizeof(Element));
        }
        if (n == kLanes) {
            Dtype::store(v_row + d, f_load(v + d));
        } else {
            Dtype::store(some, f_load_n(v + d, n));
            memcpy(v_row + d, some, static_cast<size_t>(n) * sizeof(Element));
        }
    }
}

template <typename Dtype>
KOKUBAN_INLINE void write_rows(const KvLayout& layout, uint8_t* layer_base, kokuban::ConstMatrix k,
                               kokuban::ConstMatrix v, const int64_t* slots, int64_t begin,
                               int64_t end) {
    using Element = typename Dtype::Element;
    for (int64_t row = begin; row < end; ++row) {
        const int64_t block = slots[row] / layout.block_size, offset = slots[row] % layout.block_size;
        const int64_t tile = offset / kokuban::kKvTile, lane = offset % kokuban::kKvTile;
        uint8_t* k_side = layer_base + block * layout.block_bytes + tile * layout.tile_bytes;
        uint8_t* v_side = layer_base + block * layout.block_bytes + layout.side_bytes;
        for (int64_t head = 0; head < layout.num_kv_heads; ++head) {
            const int64_t column = head * layout.head_dim;
            write_head<Dtype>(
                reinterpret_cast<Element*>(k_side + head * layout.head_bytes) + lane * Dtype::kPair,
                k.data + row * k.stride + column,
                reinterpret_cast<Element*>(v_side + head * layout.head_bytes) + offset * layout.head_dim,
                v.data + row * v.stride + column, layout.head_dim);
        }
    }
}

void kv_write(const KvLayout& layout, uint8_t* pool, int64_t layer, kokuban::ConstMatrix k,
              kokuban::ConstMatrix v, const int64_t* slots, int64_t begin, int64_t end) {
    uint8_t* base = pool + layer * layout.layer_bytes;
    switch (layout.dtype) {
        case KvDtype::kBf16: return write_rows<Bf16>(layout, base, k, v, slots, begin, end);
        case KvDtype::kFp16: return write_rows<Fp16>(layout, base, k, v, slots, begin, end);
        case KvDtype::kFp32: return write_rows<Fp32>(layout, base, k, v, slots, begin, end);
    }
}

}  // namespace

const kokuban::KvWriteKernels kokuban::KOKUBAN_VARIANT{kv_write};
