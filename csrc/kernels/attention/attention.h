// Paged causal attention with grouped heads, an optional sliding window and an optional soft-cap.
//
// The query row at position p of a request sees the keys j of that request with
// max(0, p + 1 - window) <= j <= p. Query head h reads KV head h / (Hq / Hkv).
//
//   score(j)  s_j = scale * sum_d q_d k_jd; with a soft-cap s_j = cap * tanh(s_j / cap)
//   out_d     sum_j e^{s_j} v_jd / sum_j e^{s_j} over the visible j
//
// What is computed, in which order, for one row and head, whatever is computed beside it:
//
//   score   one accumulator for each key, ascending d, fused multiply-adds; times the scale
//   split   keys [256 i, 256 (i + 1)) of the sequence:
//             m   = the largest visible score
//             p_j = e^{s_j - m}
//             l   = sum of p_j: sixteen accumulators, key j adds to that of j % 16, ascending; then
//                   the tree of f_reduce_add
//             o_d = sum of p_j v_jd: one accumulator for each d, ascending j, hidden keys skipped
//   merge   splits in ascending order: (m, l, o) and (m', l', o') give M = max(m, m'),
//             (M, l e^{m-M} + l' e^{m'-M}, o_d e^{m-M} + o'_d e^{m'-M}); a = product, then fused
//   out     o_d / l
//
// fp8_e4m3, with the scales a_j of K and b_j of V of each token and KV head: elements are read as 1/256
// of their value (half precision has their bits), and 256 is put back where the scales come in.
//
//   score   the sum as above over the elements, times (a_j (256 scale))
//   o_d     sum of w_j v_jd over the elements, w_j = p_j (256 b_j); l is of p_j
//
// int8, in exact integers, whose sums have no order:
//
//   query   r = H (q / n), rotated as K is stored (kv_write/rotation.h); u = largest |r_d| of the row and
//           head / 32767, at least 2^-126; Q_d = r_d (1 / u), rounded to nearest even, in 16 bits
//   score   the integer sum of Q_d k_jd, rounded once to float32, times (a_j (scale (n u)))
//   o_d     w_j = p_j b_j; y = largest visible w_j of the split / 32767, at least 2^-126;
//           W_j = w_j (1 / y), rounded to nearest even, in 16 bits; the integer sum of W_j v_jd, rounded
//           once to float32, times y
//
// A query of 16 bits is exact beside K of 8; weights below 2^-16 of the largest of their split are
// dropped. Sums stay below 2^31: D <= 512 and 256 keys, times 127 times 32767.
//
// So the result depends on neither the batch, nor how a prompt was cut into chunks, nor threads, nor
// block size or block ids; a split may be computed anywhere, and for the rows of several requests at once
// where their tables name the same blocks (attention_sharing.h). Same bits on every instruction set.
// A query, a score or a V that is not finite makes the rows that see it not finite, and no others; the
// scale of K or V that held what is not finite is NaN (kv_write.h) and does the same.
// Blocks that no row of the batch sees are never read: their entry may be NO_BLOCK.
//
// How a step runs it: `AttentionPlan::build` (attention_plan.h) once for each window; for each layer `attend` for each
// of `items` in any order on any thread, then, when all are done, `merge` for each of `merges`.
#pragma once

#include "common/isa.h"
#include "common/matrix.h"
#include "kernels/kv_write/kv_layout.h"

namespace kokuban {

constexpr int64_t kSplit = 256;  // keys of a split
constexpr int64_t kMostTokens = 96;  // of an item

// The requests of a step, as one KV group sees them.
struct AttentionBatch {
    int64_t num_requests;          // R
    const int32_t* query_start;    // [R + 1]: request r owns rows query_start[r] up to query_start[r + 1]
    const int32_t* context_lens;   // [R]: tokens, this step's included
    const int32_t* block_tables;   // [R][table_stride]: block ids in sequence order
    int64_t table_stride;
};

struct AttentionChunk;

// One layer's call.
struct AttentionArgs {
    KvLayout layout;
    const uint8_t* pool;
    int64_t layer;  // in its group
    AttentionBatch batch;
    ConstMatrix q;  // [T, Hq * D]
    Matrix out;     // [T, Hq * D]; must not overlap q
    int64_t num_query_heads;
    float scale;
    float softcap;    // 0: none
    int64_t window;   // 0: none
    float* partials;  // AttentionPlan::partial_floats() floats; may be null when that is 0
    const AttentionChunk* chunks;  // of the plan, as are
    const int32_t* members;        // chunks of the items
};

// Some tokens of a request: few enough that one item holds their rows. The first splits that it sees may be
// joined by one item (up to `last_joined`); each one after them leaves a state of its own.
struct AttentionChunk {
    int32_t request;
    int32_t token;        // first, counted from the request's first row
    int32_t num_tokens;
    int32_t first_split;  // of the sequence: those that any of its rows sees
    int32_t end_split;
    int32_t last_joined;  // the last split of its first state
    int64_t partial;      // index of its first float in `partials`: [kv head][state][row]; -1: it was not cut

    int64_t num_states() const { return end_split - last_joined; }
    int64_t state_of(int32_t split) const { return split > last_joined ? split - last_joined : 0; }
};

// All query heads of one KV head, for the tokens of some chunks and some splits of their keys. With more
// than one chunk, every row sees all keys of these splits, and all of them in the same blocks.
struct AttentionItem {
    int32_t kv_head;
    int32_t first_member;  // in AttentionArgs::members
    int32_t num_members;
    int32_t num_tokens;    // of all members
    int32_t first_split;
    int32_t end_split;
    bool joins;            // its splits are the first of every member, and become one state
};

// Puts together the states of a chunk that was cut.
struct AttentionMerge {
    int32_t chunk;
    int32_t kv_head;
};

struct AttentionKernels {
    // scratch: attention_scratch_floats(…) floats of the calling thread's own.
    void (*attend)(const AttentionArgs& args, const AttentionItem& item, float* scratch);
    void (*merge)(const AttentionArgs& args, const AttentionMerge& item, float* scratch);
};

extern const AttentionKernels attention_scalar, attention_avx2, attention_avx512;

const AttentionKernels& attention_kernels(Isa isa);

// Floats of scratch that `attend` and `merge` need. It is aligned to 8 bytes.
int64_t attention_scratch_floats(const KvLayout& layout, int64_t num_query_heads);

}  // namespace kokuban
