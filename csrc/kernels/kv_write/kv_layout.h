// Where a token's K and V lie in the pool. kokuban.kvcache.layout.KvLayout has the same numbers,
// the inverse, and the picture.
//
//   pool            [block][layer of the group][K, V][kv head][head_bytes]
//   K of one head   [S / 16 tiles][D / k_pair][16 tokens][k_pair]: sixteen tokens are sixteen lanes
//   V of one head   [S / v_pair][D][v_pair tokens]
//   8-bit dtypes    behind the elements of each head's K, and of its V: scales [S] float32
//
// A block of any group is `layers_per_group` layers deep, so one pool serves all groups.
#pragma once

#include <stdint.h>

namespace kokuban {

constexpr int64_t kKvTile = 16;  // tokens in a K tile
constexpr int64_t kKvMaxHeadDim = 512;
constexpr int32_t kNoBlock = -1;

// The values are those of kokuban.core.config.KV_DTYPES by index.
enum class KvDtype : int { kBf16 = 0, kFp16 = 1, kFp32 = 2, kInt8 = 3, kFp8E4m3 = 4 };

struct KvLayout {
    int64_t block_size;  // S: a multiple of kKvTile
    int64_t num_kv_heads;
    int64_t head_dim;  // D: a multiple of 8, at most kKvMaxHeadDim
    int64_t layers_per_group;
    KvDtype dtype;
    int64_t element_bytes;
    int64_t k_pair;         // elements of one token that lie together in a K tile
    int64_t v_pair;         // tokens whose elements lie together in V
    int64_t tile_bytes;     // the elements of sixteen tokens of one head, K or V alike
    int64_t elements_bytes; // the elements of one head of a block: its scales follow
    int64_t head_bytes;     // one head of a block, K or V alike
    int64_t side_bytes;     // all heads: from K to V
    int64_t layer_bytes;    // K and V: from a layer to the next
    int64_t block_bytes;

    bool scaled() const { return head_bytes != elements_bytes; }
};

KvLayout make_kv_layout(int64_t block_size, int64_t num_kv_heads, int64_t head_dim,
                        int64_t layers_per_group, KvDtype dtype);

}  // namespace kokuban
