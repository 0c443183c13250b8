// Sizes that plan, scratch and kernels agree on.
#pragma once

#include "kernels/attention/attention.h"

namespace kokuban {

// Rows (a token and a query head) of an item: enough that converting K and V costs little beside
// using them, few enough that their scores (1 KiB a row) stay in the second cache level.
constexpr int64_t kItemRows = 96;

static_assert(kItemRows <= kMostTokens);

inline int64_t tokens_per_item(int64_t group) { return group < kItemRows ? kItemRows / group : 1; }

inline int64_t padded_columns(int64_t dim) { return (dim + kKvTile - 1) / kKvTile * kKvTile; }

// o[padded_columns(D)], m, l and padding of a row.
inline int64_t attention_state_floats(int64_t head_dim) { return padded_columns(head_dim) + kKvTile; }

}  // namespace kokuban
