#include "kernels/attention/attention.h"

#include <algorithm>

#include "common/variants.h"
#include "kernels/attention/attention_rows.h"

namespace kokuban {

const AttentionKernels& attention_kernels(Isa isa) {
    return choose(isa, attention_scalar, attention_avx2, attention_avx512);
}

int64_t attention_scratch_floats(const KvLayout& layout, int64_t num_query_heads) {
    const int64_t group = num_query_heads / layout.num_kv_heads, columns = padded_columns(layout.head_dim);
    const int64_t rows = group * tokens_per_item(group);
    // For each row a pointer, a range, two states and the scores of a split.
    const int64_t common = rows * (4 + 2 * attention_state_floats(layout.head_dim) + kSplit);
    if (layout.dtype == KvDtype::kInt8) {
        // For each row the sums of a split, in half as many floats its query and its weights as 16-bit
        // integers, and two scales.
        return common + rows * (columns * 3 / 2 + kSplit / 2 + 2);
    }
    // As float32: tiles of K, together of 4,096 elements at most, but one at least; or sixteen columns of a split of V.
    return common + std::max(kKvTile * layout.head_dim, kSplit * kKvTile);
}

}  // namespace kokuban
