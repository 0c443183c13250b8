#include "kernels/kv_write/kv_layout.h"

namespace kokuban {
namespace {

struct Format {
    int64_t element_bytes, k_pair, v_pair, scale_bytes;
};

// bf16 in pairs is widened by a shift and a mask; int8 in fours of K and pairs of V is multiplied in
// pairs of 16-bit integers.
Format format_of(KvDtype dtype) {
    switch (dtype) {
        case KvDtype::kBf16: return {2, 2, 1, 0};
        case KvDtype::kFp16: return {2, 1, 1, 0};
        case KvDtype::kFp32: return {4, 1, 1, 0};
        case KvDtype::kInt8: return {1, 4, 2, 4};
        case KvDtype::kFp8E4m3: return {1, 1, 1, 4};
    }
    return {};
}

}  // namespace

KvLayout make_kv_layout(int64_t block_size, int64_t num_kv_heads, int64_t head_dim,
                        int64_t layers_per_group, KvDtype dtype) {
    const Format format = format_of(dtype);
    const int64_t elements = block_size * head_dim * format.element_bytes;
    const int64_t head = elements + block_size * format.scale_bytes, side = num_kv_heads * head;
    return {
        .block_size = block_size,
        .num_kv_heads = num_kv_heads,
        .head_dim = head_dim,
        .layers_per_group = layers_per_group,
        .dtype = dtype,
        .element_bytes = format.element_bytes,
        .k_pair = format.k_pair,
        .v_pair = format.v_pair,
        .tile_bytes = kKvTile * head_dim * format.element_bytes,
        .elements_bytes = elements,
        .head_bytes = head,
        .side_bytes = side,
        .layer_bytes = 2 * side,
        .block_bytes = layers_per_group * 2 * side,
    };
}

}  // namespace kokuban
