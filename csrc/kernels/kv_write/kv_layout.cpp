#include "kernels/kv_write/kv_layout.h"

namespace kokuban {

KvLayout make_kv_layout(int64_t block_size, int64_t num_kv_heads, int64_t head_dim,
                        int64_t layers_per_group, KvDtype dtype) {
    const int64_t element = dtype == KvDtype::kFp32 ? 4 : 2;
    const int64_t head = block_size * head_dim * element, side = num_kv_heads * head;
    return {
        .block_size = block_size,
        .num_kv_heads = num_kv_heads,
        .head_dim = head_dim,
        .layers_per_group = layers_per_group,
        .dtype = dtype,
        .element_bytes = element,
        .pair = dtype == KvDtype::kBf16 ? 2 : 1,
        .tile_bytes = kKvTile * head_dim * element,
        .head_bytes = head,
        .side_bytes = side,
        .layer_bytes = 2 * side,
        .block_bytes = layers_per_group * 2 * side,
    };
}

}  // namespace kokuban
