"""Paged attention: right, and the same bits whatever is computed beside it."""

from itertools import pairwise

import numpy as np
import pytest
from tests.kernels import reference
from tests.kernels.paged import LAYER, Cache, Sequence, make_sequence

from kokuban import _native
from kokuban.core.config import KV_DTYPES, KvDtype
from kokuban.kernels.attention import AttentionBatch, attention, attention_items
from kokuban.kvcache.layout import KvLayout

TOLERANCE = {"rtol": 0, "atol": 1e-5}
"""Scores reach 20 here, where float32 has steps of 2e-6: each weight is off by as much of itself,
and values are below 5."""

INT8_TOLERANCE = {"rtol": 0, "atol": 1e-3}
"""Queries of 16 bits: scores are off by 2^-16 of the largest element, and so are the weights of V.
What int8 itself takes from K and V is in the reference too, and ten times as much."""


def tolerance(dtype: KvDtype) -> dict[str, float]:
    return INT8_TOLERANCE if dtype == "int8" else TOLERANCE


def make_cache(
    *,
    num_kv_heads: int = 2,
    head_dim: int = 32,
    block_size: int = 16,
    dtype: KvDtype = "bf16",
    num_blocks: int = 130,
    seed: int = 3,
) -> Cache:
    layout = KvLayout(
        block_size=block_size,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        layers_per_group=2,
        dtype=dtype,
    )
    return Cache(layout, num_blocks, seed)


def stored(cache: Cache, context: int, group: int = 3, seed: int = 0) -> Sequence:
    sequence = make_sequence(
        context,
        num_query_heads=group * cache.layout.num_kv_heads,
        num_kv_heads=cache.layout.num_kv_heads,
        head_dim=cache.layout.head_dim,
        seed=seed,
    )
    cache.store(sequence)
    return sequence


def exact(
    cache: Cache,
    sequence: Sequence,
    first: int,
    *,
    window: int | None = None,
    softcap: float | None = None,
) -> np.ndarray:
    k, v = cache.kept(sequence)
    return reference.attention(
        sequence.q[first:],
        k,
        v,
        scale=cache.layout.head_dim**-0.5,
        window=window,
        softcap=softcap,
    )


@pytest.mark.parametrize("context", [1, 15, 16, 17, 255, 256, 257, 700])
@pytest.mark.parametrize("dtype", KV_DTYPES)
def test_the_last_rows_of_any_context_are_right_on_every_variant(
    dtype: KvDtype, context: int
) -> None:
    cache = make_cache(dtype=dtype)
    sequence = stored(cache, context)
    first = max(0, context - 5)

    outs = [
        cache.attend([(sequence, first, context)], isa_cap=variant)[0]
        for variant in reference.VARIANTS
    ]

    np.testing.assert_allclose(outs[0], exact(cache, sequence, first), **tolerance(dtype))
    assert all(np.array_equal(outs[0], out) for out in outs)


@pytest.mark.parametrize("head_dim", [8, 16, 24, 64, 96, 128, 256])
@pytest.mark.parametrize("group", [1, 3, 7])
@pytest.mark.parametrize("dtype", ["bf16", "int8", "fp8_e4m3"])
def test_every_head_size_and_group_is_right_for_few_and_many_rows(
    dtype: KvDtype, group: int, head_dim: int
) -> None:
    cache = make_cache(head_dim=head_dim, num_kv_heads=1, dtype=dtype)
    sequence = stored(cache, 270, group)
    expected = exact(cache, sequence, 250)
    for first in (269, 250):  # One token; so many that K and V are converted once for all.
        outs = [
            cache.attend([(sequence, first, 270)], isa_cap=variant)[0]
            for variant in reference.VARIANTS
        ]
        np.testing.assert_allclose(outs[0], expected[first - 250 :], **tolerance(dtype))
        assert all(np.array_equal(outs[0], out) for out in outs)


@pytest.mark.parametrize("dtype", KV_DTYPES)
@pytest.mark.parametrize("window", [None, 1, 37, 199])
@pytest.mark.parametrize("variant", reference.VARIANTS)
def test_chunks_of_a_prompt_give_the_rows_of_the_whole(
    variant: int, window: int | None, dtype: KvDtype
) -> None:
    """The 200 last tokens of 290, so that both a chunk's start and a split lie among them."""
    cache = make_cache(dtype=dtype, num_kv_heads=1, head_dim=16)
    sequence = stored(cache, 290)
    [whole] = cache.attend([(sequence, 90, 290)], window=window, isa_cap=variant)
    np.testing.assert_allclose(whole, exact(cache, sequence, 90, window=window), **tolerance(dtype))

    for size in (1, 7, 16, 64):
        cuts = [*range(90, 290, size), 290]
        chunks = [
            cache.attend([(sequence, first, end)], window=window, isa_cap=variant)[0]
            for first, end in pairwise(cuts)
        ]
        assert np.array_equal(np.concatenate(chunks), whole)


@pytest.mark.parametrize("dtype", ["bf16", "int8", "fp8_e4m3"])
def test_neighbours_block_size_block_ids_and_threads_change_no_bit(dtype: KvDtype) -> None:
    contexts = [700, 1, 300, 513]
    outs = []
    for block_size, seed in ((16, 3), (16, 4), (32, 3), (64, 3), (128, 3)):
        cache = make_cache(block_size=block_size, seed=seed, dtype=dtype)
        sequences = [stored(cache, context, seed=context) for context in contexts]
        parts = [
            (s, max(0, len(s.k) - rows), len(s.k))
            for s, rows in zip(sequences, (1, 1, 200, 3), strict=True)
        ]
        alone = [cache.attend([part])[0] for part in parts]
        outs.append(np.concatenate(alone))
        for plan_threads in (1, 2, 16):
            together = cache.attend(parts, plan_threads=plan_threads)
            assert np.array_equal(np.concatenate(together), outs[-1])
        backwards = cache.attend(parts[::-1], plan_threads=3, thread_pool=_native.ThreadPool(3))
        assert np.array_equal(np.concatenate(backwards[::-1]), outs[-1])

    assert all(np.array_equal(outs[0], out) for out in outs)


@pytest.mark.parametrize("window", [16, 100, 256, 300])
@pytest.mark.parametrize("dtype", ["bf16", "int8", "fp8_e4m3"])
def test_a_window_looks_at_nothing_behind_it(dtype: KvDtype, window: int) -> None:
    """Blocks behind the window are NO_BLOCK; an infinity just before it is not seen."""
    cache = make_cache(dtype=dtype)
    sequence = stored(cache, 700)
    [out] = cache.attend([(sequence, 690, 700)], window=window)

    sequence.k[: 691 - window], sequence.v[: 691 - window] = np.nan, np.inf
    cache.free += sequence.blocks[::-1]
    cache.store(sequence)

    for plan_threads in (1, 8):
        [again] = cache.attend([(sequence, 690, 700)], window=window, plan_threads=plan_threads)
        assert np.array_equal(again, out)
    assert np.isfinite(out).all()


@pytest.mark.parametrize("dtype", ["bf16", "int8", "fp8_e4m3"])
def test_a_softcap_bounds_the_scores(dtype: KvDtype) -> None:
    cache = make_cache(dtype=dtype)
    sequence = stored(cache, 300)
    sequence.q *= 20
    outs = [
        cache.attend([(sequence, 280, 300)], softcap=5.0, isa_cap=variant)[0]
        for variant in reference.VARIANTS
    ]

    np.testing.assert_allclose(
        outs[0], exact(cache, sequence, 280, softcap=5.0), **tolerance(dtype)
    )
    assert all(np.array_equal(outs[0], out) for out in outs)
    assert not np.allclose(outs[0], exact(cache, sequence, 280), **tolerance(dtype))


@pytest.mark.parametrize("softcap", [None, 5.0])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("side", ["k", "v"])
@pytest.mark.parametrize("dtype", ["bf16", "int8", "fp8_e4m3"])
def test_what_is_not_finite_spoils_the_rows_that_see_it_and_no_others(
    dtype: KvDtype, side: str, value: float, softcap: float | None
) -> None:
    cache = make_cache(dtype=dtype)
    sequence, other = stored(cache, 300), stored(cache, 40, seed=1)
    clean, clean_other = cache.attend([(sequence, 200, 300), (other, 0, 40)], softcap=softcap)
    getattr(sequence, side)[260, 1, 3] = value
    cache.free += sequence.blocks[::-1]
    cache.store(sequence)

    spoilt, spoilt_other = cache.attend([(sequence, 200, 300), (other, 0, 40)], softcap=softcap)

    assert np.array_equal(spoilt_other, clean_other)
    assert np.array_equal(spoilt[:60], clean[:60])
    assert np.array_equal(spoilt[:, :3], clean[:, :3])  # The other KV head's.
    assert not np.isfinite(spoilt[60:, 3:]).all(axis=2).any()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["bf16", "int8", "fp8_e4m3"])
def test_a_query_that_is_not_finite_spoils_its_own_row_alone(dtype: KvDtype, value: float) -> None:
    cache = make_cache(dtype=dtype)
    sequence = stored(cache, 300)
    [clean] = cache.attend([(sequence, 200, 300)])
    sequence.q[250, 4, 7] = value

    outs = [
        cache.attend([(sequence, 200, 300)], isa_cap=variant)[0] for variant in reference.VARIANTS
    ]

    others = np.ones(clean.shape[:2], bool)
    others[50, 4] = False
    for out in outs:
        assert np.array_equal(out[others], clean[others])
        assert not np.isfinite(out[50, 4]).any()


@pytest.mark.parametrize("dtype", ["int8", "fp8_e4m3"])
def test_rows_of_zeros_and_of_denormals_give_zeros_and_no_nan(dtype: KvDtype) -> None:
    """Bugbank B98: their scales neither vanish nor become infinite on the way back."""
    cache = make_cache(dtype=dtype)
    sequence = stored(cache, 300)
    sequence.k[:], sequence.v[:], sequence.q[299] = 0, 0, 0
    sequence.k[100], sequence.v[100] = 1e-45, 1e-40
    cache.free += sequence.blocks[::-1]
    cache.store(sequence)

    for variant in reference.VARIANTS:
        [out] = cache.attend([(sequence, 290, 300)], isa_cap=variant)
        assert np.abs(out).max() < 1e-40


@pytest.mark.parametrize("dtype", ["int8", "fp8_e4m3"])
def test_a_quantised_cache_is_near_the_values_that_went_in(dtype: KvDtype) -> None:
    """Each element is off by half a code at most; a mean of hundreds by much less."""
    cache = make_cache(dtype=dtype, num_kv_heads=1, head_dim=64)
    sequence = stored(cache, 600)
    expected = reference.attention(sequence.q[590:], sequence.k, sequence.v, scale=64**-0.5)

    [out] = cache.attend([(sequence, 590, 600)])

    error = np.sqrt(((out - expected) ** 2).mean() / (expected**2).mean())
    assert error < (0.02 if dtype == "int8" else 0.08)


def test_a_few_large_elements_of_k_do_not_cost_int8_the_others() -> None:
    """As in Qwen2.5, whose K has the same few elements a hundred times the others in every token.

    They shift all scores of a row alike; what the softmax sees is in the small ones.
    """
    cache = make_cache(dtype="int8", num_kv_heads=1, head_dim=64)
    sequence = stored(cache, 600)
    sequence.k[:, :, [5, 40]] += np.array([150, -90], np.float32)
    cache.free += sequence.blocks[::-1]
    cache.store(sequence)
    expected = reference.attention(sequence.q[590:], sequence.k, sequence.v, scale=64**-0.5)

    [out] = cache.attend([(sequence, 590, 600)])

    error = np.sqrt(((out - expected) ** 2).mean() / (expected**2).mean())
    assert error < 0.15


def test_a_dominant_score_does_not_overflow() -> None:
    cache = make_cache(dtype="fp32")
    sequence = stored(cache, 520)
    sequence.q[519] *= 1000
    [out] = cache.attend([(sequence, 519, 520)])

    np.testing.assert_allclose(out, exact(cache, sequence, 519), rtol=0, atol=2e-3)
    assert np.isfinite(out).all()


def test_work_is_cut_by_tokens_and_by_keys_and_covers_each_row_once() -> None:
    cache = make_cache(num_blocks=1)
    batch = AttentionBatch(
        np.array([0, 1, 101, 101], np.int32),
        np.array([16000, 300, 50], np.int32),
        np.arange(3000, dtype=np.int32).reshape(3, 1000),
    )
    for threads in (1, 2, 4):
        items = attention_items(batch, cache.layout, num_query_heads=6, threads=threads)
        covered = np.zeros((2, 3, 101, 63), int)
        for item in items:
            for request, token, num_tokens in item.chunks:
                tokens = slice(token, token + num_tokens)
                covered[item.kv_head, request, tokens, item.first_split : item.end_split] += 1
        assert covered.max() == 1
        assert covered[:, 0, 0].all()
        assert covered[:, 1, :100, 0].all()
        assert not covered[:, 2].any()
        cut = [item for item in items if item.chunks[0].request == 0]
        assert any(item.partial for item in cut) == (threads > 1)


def test_a_window_limits_the_splits_that_are_read() -> None:
    cache = make_cache(num_blocks=1)
    batch = AttentionBatch(
        np.array([0, 1], np.int32), np.array([8000], np.int32), np.zeros((1, 500), np.int32)
    )
    items = attention_items(batch, cache.layout, num_query_heads=2, window=512, threads=1)

    assert [(i.first_split, i.end_split) for i in items] == [(29, 32), (29, 32)]


def test_what_native_code_could_not_survive_is_refused() -> None:
    cache = make_cache(num_blocks=4)
    q = np.zeros((2, 64), np.float32)

    def call(starts: list[int], lens: list[int], tables: list[list[int]], heads: int = 2) -> None:
        batch = AttentionBatch(
            np.array(starts, np.int32), np.array(lens, np.int32), np.array(tables, np.int32)
        )
        attention(
            q,
            cache.storage.blocks,
            LAYER,
            cache.layout,
            batch,
            q.copy(),
            num_query_heads=heads,
            scale=1.0,
        )

    with pytest.raises(ValueError, match="query_start goes from 0 to 1, not 0 to 2"):
        call([0, 1], [5], [[0]])
    with pytest.raises(ValueError, match="more rows than its context"):
        call([0, 2], [1], [[0]])
    with pytest.raises(ValueError, match="request 0 has 17 tokens, its table 1 blocks"):
        call([0, 2], [17], [[0]])
    with pytest.raises(ValueError, match="request 1 sees a block outside the pool of 4"):
        call([0, 1, 2], [17, 17], [[0, 3], [0, 4]])
    with pytest.raises(ValueError, match="request 0 sees a block outside the pool of 4"):
        call([0, 2], [17], [[-1, 3]])
    with pytest.raises(ValueError, match="3 query heads cannot share 2 KV heads"):
        call([0, 2], [5], [[0]], heads=3)
