"""The tiles of the head, and what a pool makes of hidden states."""

import struct

import numpy as np
import pytest

from kokuban.core.errors import RequestError
from kokuban.core.pooling import PoolingParams
from kokuban.core.request import RequestId
from kokuban.core.step import Chunk
from kokuban.runner.head import HeadRow, tiles
from kokuban.runner.pooling import PromptPool


def rows(count: int, *, pools: bool = False, num_drafts: int = 0) -> list[HeadRow]:
    """The rows of one chunk; with drafts they are one more than those."""
    tokens = tuple(range(max(count, num_drafts + 1)))
    chunk = Chunk(RequestId("r"), 0, tokens, (), samples=not pools, num_drafts=num_drafts)
    pool = PromptPool(PoolingParams(pooling="mean"), count) if pools else None
    return [HeadRow(chunk, row, None, pool) for row in range(count)]


def test_tiles_of_logits_have_64_rows_and_pooled_ones_as_many_as_the_body() -> None:
    assert list(tiles(rows(150), 512)) == [(0, 64), (64, 128), (128, 150)]
    assert list(tiles(rows(1030, pools=True), 512)) == [(0, 512), (512, 1024), (1024, 1030)]
    assert list(tiles([], 512)) == []


def test_rows_with_logits_and_rows_that_are_pooled_are_never_in_one_tile() -> None:
    head = [*rows(70), *rows(3, pools=True), *rows(2, pools=True), *rows(1)]

    assert list(tiles(head, 512)) == [(0, 64), (64, 70), (70, 75), (75, 76)]


def test_a_chunk_with_drafts_is_not_cut() -> None:
    head = [*rows(60), *rows(8, num_drafts=7), *rows(3, pools=True)]

    assert list(tiles(head, 512)) == [(0, 60), (60, 68), (68, 71)]


def pooled(params: PoolingParams, *states: list[float]) -> list[float] | str:
    pool = PromptPool(params, len(states))
    for state in states:
        assert not pool.is_complete
        pool.add(np.array(state, np.float32))
    assert pool.is_complete
    found = pool.vector()
    return found if isinstance(found, str) else list(struct.unpack(f"<{len(found) // 4}f", found))


def test_a_mean_counts_every_token_once() -> None:
    raw = PoolingParams(pooling="mean", normalize=False)

    assert pooled(raw, [1, 2, 3], [3, 2, 0]) == [2, 2, 1.5]
    assert pooled(PoolingParams(pooling="last"), [3, 0, 4]) == pytest.approx([0.6, 0, 0.8])


def test_a_sum_is_kept_in_float64() -> None:
    """In float32 the ones would be lost beside the large number."""
    raw = PoolingParams(pooling="mean", normalize=False)

    assert pooled(raw, [2.0**25], [1], [1], [-(2.0**25)]) == [0.5]


def test_dimensions_are_cut_before_the_vector_is_scaled() -> None:
    assert pooled(PoolingParams(dimensions=2), [3, 4, 100]) == pytest.approx([0.6, 0.8])
    raw = PoolingParams(dimensions=2, normalize=False)
    assert pooled(raw, [3, 4, 100]) == [3, 4]


def test_a_vector_of_zeros_stays_one() -> None:
    assert pooled(PoolingParams(), [0, 0]) == [0, 0]


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_numbers_that_are_none_fail_the_request(number: float) -> None:
    found = pooled(PoolingParams(pooling="mean"), [1, 2], [number, 1], [1, 1])

    assert isinstance(found, str)
    assert "not finite" in found


def test_parameters_that_cannot_be_are_refused_by_name() -> None:
    with pytest.raises(RequestError, match="pooling='cls' is none of last, mean") as error:
        PoolingParams(pooling="cls")  # type: ignore[arg-type]
    assert error.value.param == "pooling"
    with pytest.raises(RequestError, match="dimensions=0 is below 1"):
        PoolingParams(dimensions=0)
