#include <nanobind/stl/optional.h>

#include <optional>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/matrices.h"
#include "common/thread_pool.h"
#include "kernels/attention/attention_plan.h"
#include "kernels/kv_write/kv_write.h"

namespace kokuban {
namespace {

using Pool = Array<uint8_t, 2>;
using Ints = Array<const int32_t, 1>;
using Tables = Array<const int32_t, 2>;

// block_size, num_kv_heads, head_dim, layers_per_group, dtype
using LayoutNumbers = Array<const int64_t, 1>;

KvLayout layout_of(const LayoutNumbers& numbers) {
    const int64_t* n = numbers.data();
    return make_kv_layout(n[0], n[1], n[2], n[3], static_cast<KvDtype>(n[4]));
}

nb::dict layout_bytes(const LayoutNumbers& numbers) {
    const KvLayout layout = layout_of(numbers);
    nb::dict sizes;
    sizes["tile"] = layout.tile_bytes;
    sizes["elements"] = layout.elements_bytes;
    sizes["head"] = layout.head_bytes;
    sizes["side"] = layout.side_bytes;
    sizes["layer"] = layout.layer_bytes;
    sizes["block"] = layout.block_bytes;
    return sizes;
}

void write_kv(const LayoutNumbers& numbers, const Pool& pool, int64_t layer, const InMatrix& k,
              const InMatrix& v, const std::optional<Array<const float, 1>>& k_offset,
              const Array<const int64_t, 1>& slots, int64_t begin, int64_t end, int cap) {
    kv_write_kernels(capped_isa(cap))
        .kv_write(layout_of(numbers), pool.data(), layer, matrix(k), matrix(v),
                  k_offset ? k_offset->data() : nullptr, slots.data(), begin, end);
}

AttentionBatch batch_of(const Ints& query_start, const Ints& context_lens, const Tables& tables) {
    return {
        .num_requests = static_cast<int64_t>(context_lens.shape(0)),
        .query_start = query_start.data(),
        .context_lens = context_lens.data(),
        .block_tables = tables.data(),
        .table_stride = static_cast<int64_t>(tables.shape(1)),
    };
}

// Everything of a step for one layer: plan, scratch, items, merges.
void attend(const LayoutNumbers& numbers, const Pool& pool, int64_t layer, const InMatrix& q,
            const Ints& query_start, const Ints& context_lens, const Tables& tables, const OutMatrix& out,
            int64_t num_query_heads, float scale, float softcap, int64_t window, int plan_threads,
            ThreadPool* threads, int cap) {
    AttentionArgs args{
        .layout = layout_of(numbers),
        .pool = pool.data(),
        .layer = layer,
        .batch = batch_of(query_start, context_lens, tables),
        .q = matrix(q),
        .out = matrix(out),
        .num_query_heads = num_query_heads,
        .scale = scale,
        .softcap = softcap,
        .window = window,
        .partials = nullptr,
        .chunks = nullptr,
        .members = nullptr,
    };
    AttentionPlan plan;
    plan.build(args.batch, args.layout, num_query_heads, window, plan_threads);
    std::vector<float> partials(static_cast<size_t>(plan.partial_floats()));
    args.partials = partials.data();
    args.chunks = plan.chunks().data();
    args.members = plan.members().data();
    const auto floats = static_cast<size_t>(attention_scratch_floats(args.layout, num_query_heads));
    std::vector<float> scratch(floats * static_cast<size_t>(threads ? threads->threads() : 1));
    const AttentionKernels& kernels = attention_kernels(capped_isa(cap));

    const auto mine = [&](int worker) { return scratch.data() + floats * static_cast<size_t>(worker); };
    auto item = [&](int64_t i, int worker) { kernels.attend(args, plan.items()[i], mine(worker)); };
    auto merge = [&](int64_t i, int worker) { kernels.merge(args, plan.merges()[i], mine(worker)); };
    const auto run = [&](size_t count, auto& job) {
        if (threads) return threads->run(static_cast<int64_t>(count), job);
        for (size_t i = 0; i < count; ++i) job(static_cast<int64_t>(i), 0);
    };
    run(plan.items().size(), item);
    run(plan.merges().size(), merge);
}

// (kv head, [(request, token, tokens)], first split, end split, whether others have splits of the same rows)
nb::list attention_items(const LayoutNumbers& numbers, const Ints& query_start, const Ints& context_lens,
                         const Tables& tables, int64_t num_query_heads, int64_t window, int threads) {
    AttentionPlan plan;
    plan.build(batch_of(query_start, context_lens, tables), layout_of(numbers), num_query_heads, window, threads);
    nb::list items;
    for (const AttentionItem& item : plan.items()) {
        nb::list chunks;
        bool partial = false;
        for (int32_t i = 0; i < item.num_members; ++i) {
            const auto at = static_cast<size_t>(plan.members()[static_cast<size_t>(item.first_member + i)]);
            const AttentionChunk& chunk = plan.chunks()[at];
            chunks.append(nb::make_tuple(chunk.request, chunk.token, chunk.num_tokens));
            partial = partial || chunk.partial >= 0;
        }
        items.append(nb::make_tuple(item.kv_head, chunks, item.first_split, item.end_split, partial));
    }
    return items;
}

}  // namespace

void bind_attention(nb::module_& module) {
    using Unlocked = nb::call_guard<nb::gil_scoped_release>;
    module.def("kv_layout_bytes", &layout_bytes);
    module.def("kv_write", &write_kv, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
               nb::arg().none(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), Unlocked());
    module.def("attention", &attend, nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
               nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(), nb::arg(),
               nb::arg().none(), nb::arg(), Unlocked());
    module.def("attention_items", &attention_items);
}

}  // namespace kokuban
