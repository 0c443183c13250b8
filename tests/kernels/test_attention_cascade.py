"""Attention of requests that share blocks: one item reads them for all, and no bit changes."""

from collections.abc import Sequence as Rows
from dataclasses import dataclass

import numpy as np
import pytest
from tests.kernels import reference
from tests.kernels.paged import LAYER, Cache, Sequence, make_sequence

from kokuban import _native
from kokuban.core.config import KV_DTYPES, KvDtype
from kokuban.kernels.attention import AttentionBatch, AttentionItem, attention_items
from kokuban.kernels.kv_write import kv_write
from kokuban.kvcache.layout import KvLayout

BLOCK = 16

Part = tuple[Sequence, int, int]


@dataclass(frozen=True)
class Heads:
    """The heads of a layer: `group` query heads for each KV head."""

    group: int = 3
    num_kv_heads: int = 2
    head_dim: int = 32


def make_cache(dtype: KvDtype, heads: Heads, num_blocks: int = 700) -> Cache:
    layout = KvLayout(
        block_size=BLOCK,
        num_kv_heads=heads.num_kv_heads,
        head_dim=heads.head_dim,
        layers_per_group=2,
        dtype=dtype,
    )
    return Cache(layout, num_blocks)


def start(cache: Cache, heads: Heads, context: int, seed: int) -> Sequence:
    sequence = make_sequence(
        context,
        num_query_heads=heads.group * heads.num_kv_heads,
        num_kv_heads=heads.num_kv_heads,
        head_dim=heads.head_dim,
        seed=seed,
    )
    cache.store(sequence)
    return sequence


def fork(
    cache: Cache, heads: Heads, parent: Sequence, shared: int, context: int, seed: int
) -> Sequence:
    """A request whose first `shared` tokens are the parent's, in the parent's blocks."""
    child = make_sequence(
        context,
        num_query_heads=heads.group * heads.num_kv_heads,
        num_kv_heads=heads.num_kv_heads,
        head_dim=heads.head_dim,
        seed=seed,
    )
    child.k[:shared], child.v[:shared] = parent.k[:shared], parent.v[:shared]
    own = [int(cache.free.pop()) for _ in range(-(-context // BLOCK) - shared // BLOCK)]
    child.blocks = parent.blocks[: shared // BLOCK] + own
    at = np.arange(shared, context)
    slots = np.array(child.blocks, np.int64)[at // BLOCK] * BLOCK + at % BLOCK
    k, v = (x[shared:].reshape(len(at), -1) for x in (child.k, child.v))
    kv_write(k, v, slots, cache.storage.blocks, LAYER, cache.layout)
    return child


def copies(cache: Cache, parts: Rows[Part]) -> list[Part]:
    """The same requests with blocks of their own."""
    apart = []
    for sequence, first, end in parts:
        copy = Sequence(sequence.q, sequence.k, sequence.v)
        cache.store(copy)
        apart.append((copy, first, end))
    return apart


def tree(cache: Cache, heads: Heads) -> list[Part]:
    """Decoders and chunks on one system prompt; some of them on a second level as well.

    The first level is splits 0 and 1 and a part of 2; the second goes on to the end of split 3.
    """
    root = start(cache, heads, 650, seed=1)
    agent = fork(cache, heads, root, 640, 1070, seed=2)
    second = [
        fork(cache, heads, agent, 1024, context, seed)
        for context, seed in ((1300, 3), (1030, 4), (1025, 5))
    ]
    first = [fork(cache, heads, root, 640, context, seed) for context, seed in ((700, 6), (641, 7))]
    stranger = start(cache, heads, 600, seed=8)
    decoders = [(s, len(s.k) - 1, len(s.k)) for s in (root, agent, *second, *first, stranger)]
    prompt = fork(cache, heads, root, 512, 700, seed=9)
    few = fork(cache, heads, agent, 1024, 1040, seed=10)
    return [*decoders[:4], (prompt, 660, 700), *decoders[4:], (few, 1036, 1040)]


def batch_of(parts: Rows[Part]) -> AttentionBatch:
    tables = np.full((len(parts), max(len(s.blocks) for s, _, _ in parts)), -1, np.int32)
    for request, (sequence, _, _) in enumerate(parts):
        tables[request, : len(sequence.blocks)] = sequence.blocks
    lens = [end - first for _, first, end in parts]
    starts = np.concatenate([[0], np.cumsum(lens)]).astype(np.int32)
    return AttentionBatch(starts, np.array([end for _, _, end in parts], np.int32), tables)


def shared_items(items: Rows[AttentionItem]) -> list[AttentionItem]:
    return [item for item in items if len(item.chunks) > 1]


def requests_of(items: Rows[AttentionItem]) -> list[tuple[int, int, list[int]]]:
    """(first split, end split, requests) of KV head 0's shared items."""
    found = [
        (item.first_split, item.end_split, [chunk.request for chunk in item.chunks])
        for item in shared_items(items)
        if item.kv_head == 0
    ]
    return sorted(found)


@pytest.mark.parametrize("window", [None, 300, 600, 900])
@pytest.mark.parametrize("dtype", KV_DTYPES)
def test_a_tree_of_prefixes_gives_the_bits_of_private_copies(
    dtype: KvDtype, window: int | None
) -> None:
    heads = Heads()
    cache = make_cache(dtype, heads)
    parts = tree(cache, heads)
    apart = copies(cache, parts)
    alone = [cache.attend([part], window=window)[0] for part in apart]

    items = attention_items(batch_of(parts), cache.layout, num_query_heads=6, window=window)
    assert bool(shared_items(items)) == (window != 300)  # There too little is seen by several.
    apart_items = attention_items(batch_of(apart), cache.layout, num_query_heads=6, window=window)
    assert not shared_items(apart_items)

    for some, expected in ((parts, alone), (parts[::-1], alone[::-1]), (apart, alone)):
        for threads in (1, 2, 16):
            outs = cache.attend(some, window=window, plan_threads=threads)
            assert all(np.array_equal(a, b) for a, b in zip(outs, expected, strict=True))
    pool = _native.ThreadPool(3)
    for variant in reference.VARIANTS:
        outs = cache.attend(parts, window=window, plan_threads=3, thread_pool=pool, isa_cap=variant)
        assert all(np.array_equal(a, b) for a, b in zip(outs, alone, strict=True))


@pytest.mark.parametrize(
    "heads",
    [
        Heads(group=1, num_kv_heads=1, head_dim=64),
        Heads(group=7, num_kv_heads=1, head_dim=24),
        Heads(group=4, num_kv_heads=1, head_dim=256),
        Heads(group=30, num_kv_heads=1, head_dim=16),
        Heads(group=50, num_kv_heads=1, head_dim=8),
    ],
)
@pytest.mark.parametrize("dtype", ["bf16", "int8"])
def test_every_group_of_query_heads_gives_the_bits_of_private_copies(
    dtype: KvDtype, heads: Heads
) -> None:
    cache = make_cache(dtype, heads)
    parts = tree(cache, heads)
    apart = copies(cache, parts)
    num_heads = heads.group * heads.num_kv_heads
    items = attention_items(batch_of(parts), cache.layout, num_query_heads=num_heads)
    assert bool(shared_items(items)) == (heads.group <= 48)  # Else no two fit in an item.

    for variant in reference.VARIANTS:
        outs = cache.attend(parts, plan_threads=2, isa_cap=variant)
        expected = cache.attend(apart, isa_cap=variant)
        assert all(np.array_equal(a, b) for a, b in zip(outs, expected, strict=True))


def test_each_level_of_a_tree_is_read_by_those_that_share_it() -> None:
    heads = Heads(group=1)
    cache = make_cache("bf16", heads, num_blocks=400)
    parts = tree(cache, heads)

    items = attention_items(batch_of(parts), cache.layout, num_query_heads=2)

    # 8 is the stranger, 4 a chunk of 40 rows.
    assert requests_of(items) == [
        (0, 2, [0, 1, 2, 3, 4, 5, 6, 7, 9]),
        (2, 4, [1, 2, 3, 5, 9]),
    ]


def test_only_splits_that_every_row_sees_whole_are_shared_behind_a_window() -> None:
    heads = Heads(group=1, num_kv_heads=1)
    cache = make_cache("bf16", heads, num_blocks=200)
    root = start(cache, heads, 1024, seed=1)
    contexts = (1026, 1027, 1028, 1029, 1030, 1040, 1100)
    parts = [
        (fork(cache, heads, root, 1024, context, seed), context - 1, context)
        for seed, context in enumerate(contexts, start=2)
    ]

    everyone = [0, 1, 2, 3, 4, 5, 6]
    for window, shared in (
        (500, [(3, 4, everyone)]),
        (520, [(2, 3, [0, 1, 2, 3, 4]), (3, 4, everyone)]),
        (600, [(2, 4, everyone)]),
    ):
        items = attention_items(batch_of(parts), cache.layout, num_query_heads=1, window=window)
        assert requests_of(items) == shared


def test_a_split_with_one_other_block_is_not_shared() -> None:
    heads = Heads(group=1, num_kv_heads=1)
    cache = make_cache("bf16", heads, num_blocks=200)
    root = start(cache, heads, 600, seed=1)
    others = [fork(cache, heads, root, 496, 600, seed) for seed in range(2, 6)]
    assert all(other.blocks[:31] == root.blocks[:31] for other in others)
    assert len({s.blocks[31] for s in (root, *others)}) == 5
    parts = [(s, 599, 600) for s in (root, *others)]

    items = attention_items(batch_of(parts), cache.layout, num_query_heads=1)

    assert requests_of(items) == [(0, 1, [0, 1, 2, 3, 4])]


def test_two_requests_share_from_four_splits_on() -> None:
    """Fewer are read sooner twice than merged with the rest."""
    heads = Heads(group=1, num_kv_heads=1)
    cache = make_cache("bf16", heads, num_blocks=200)
    root = start(cache, heads, 1100, seed=1)
    for shared, expected in ((768, []), (1024, [(0, 4, [0, 1])])):
        other = fork(cache, heads, root, shared, 1100, seed=2)
        batch = batch_of([(root, 1099, 1100), (other, 1099, 1100)])
        assert requests_of(attention_items(batch, cache.layout, num_query_heads=1)) == expected


def test_requests_that_share_all_they_see_need_no_merge() -> None:
    heads = Heads(group=2, num_kv_heads=1)
    cache = make_cache("bf16", heads, num_blocks=200)
    root = start(cache, heads, 512, seed=1)
    twins = [Sequence(root.q + i, root.k, root.v, root.blocks) for i in range(4)]
    parts = [(twin, 511, 512) for twin in twins]
    items = attention_items(batch_of(parts), cache.layout, num_query_heads=2)
    assert [(len(item.chunks), item.partial) for item in items] == [(4, False)]

    # One goes on after what they share: the others are written out by the shared item.
    longer = fork(cache, heads, root, 512, 520, seed=2)
    parts.insert(2, (longer, 519, 520))
    expected = [cache.attend([part])[0] for part in parts]
    outs = cache.attend(parts)

    items = attention_items(batch_of(parts), cache.layout, num_query_heads=2)
    assert requests_of(items) == [(0, 2, [0, 1, 2, 3, 4])]
    assert all(np.array_equal(a, b) for a, b in zip(outs, expected, strict=True))
    assert not np.array_equal(outs[0], outs[1])


@pytest.mark.parametrize("window", [None, 200, 700])
@pytest.mark.parametrize("seed", range(6))
def test_each_row_and_split_is_in_one_item_whatever_is_shared(
    seed: int, window: int | None
) -> None:
    """Random forests: tables that copy the first blocks of an earlier one."""
    rng = np.random.default_rng(seed)
    heads = Heads(group=int(rng.choice([1, 3, 7])), num_kv_heads=1)
    cache = make_cache("bf16", heads, num_blocks=1)
    count, width = 20, 80
    tables = np.arange(count * width, dtype=np.int32).reshape(count, width)
    for request in range(1, count):
        shared = int(rng.integers(0, width))
        tables[request, :shared] = tables[rng.integers(0, request), :shared]
    rows = rng.choice([1, 1, 1, 2, 30, 70], count)
    lens = rng.integers(rows, width * BLOCK + 1)
    starts = np.concatenate([[0], np.cumsum(rows)]).astype(np.int32)
    batch = AttentionBatch(starts, lens.astype(np.int32), tables)

    for threads in (1, 2):
        items = attention_items(
            batch, cache.layout, num_query_heads=heads.group, window=window, threads=threads
        )
        covered = np.zeros((count, rows.max(), 5), int)
        for item in items:
            for request, token, num in item.chunks:
                covered[request, token : token + num, item.first_split : item.end_split] += 1
            if len(item.chunks) > 1:
                first = item.first_split * 256 // BLOCK
                seen = tables[[c.request for c in item.chunks], first : item.end_split * 16]
                assert (seen == seen[0]).all()
        assert covered.max() == 1
        for request in range(count):
            for token in range(rows[request]):
                position = lens[request] - rows[request] + token
                behind = 0 if window is None else max(0, position + 1 - window)
                assert covered[request, token, behind // 256 : position // 256 + 1].all()
    assert shared_items(items) or window is not None
