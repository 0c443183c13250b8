"""The block arithmetic of the articles that the project began with."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kokuban.core.request import BlockId
from kokuban.kvcache.blocks import (
    Slot,
    locate,
    max_blocks_touched,
    num_blocks_for,
    num_empty_slots,
)


@pytest.mark.parametrize(
    ("num_tokens", "num_blocks", "num_empty"),
    [
        (1, 1, 15),
        (40, 3, 8),
        (288, 18, 0),
        (289, 19, 15),
        (300, 19, 4),
        (301, 19, 3),
        (304, 19, 0),
        (305, 20, 15),
        (317, 20, 3),
        (320, 20, 0),
        (600, 38, 8),
        (1000, 63, 8),
        (4000, 250, 0),
    ],
)
def test_blocks_of_16_tokens(num_tokens: int, num_blocks: int, num_empty: int) -> None:
    assert num_blocks_for(num_tokens, 16) == num_blocks
    assert num_empty_slots(num_tokens, 16) == num_empty


@pytest.mark.parametrize(
    ("block_size", "table_length", "num_empty"),
    [(1, 600, 0), (16, 38, 8), (32, 19, 8), (64, 10, 40), (1024, 1, 424)],
)
def test_a_smaller_block_wastes_less_and_needs_a_longer_table(
    block_size: int, table_length: int, num_empty: int
) -> None:
    assert num_blocks_for(600, block_size) == table_length
    assert num_empty_slots(600, block_size) == num_empty


@given(num_tokens=st.integers(1, 100_000), block_size=st.sampled_from([1, 8, 16, 128]))
def test_only_the_last_block_has_empty_slots(num_tokens: int, block_size: int) -> None:
    num_slots = num_blocks_for(num_tokens, block_size) * block_size

    assert num_slots - num_tokens == num_empty_slots(num_tokens, block_size)
    assert 0 <= num_empty_slots(num_tokens, block_size) < block_size


@pytest.mark.parametrize(
    ("position", "slot"),
    [
        (0, Slot(BlockId(105), 0)),
        (15, Slot(BlockId(105), 15)),
        (16, Slot(BlockId(37), 0)),
        (20, Slot(BlockId(37), 4)),
        (47, Slot(BlockId(912), 15)),
    ],
)
def test_a_token_is_found_through_the_table_105_37_912(position: int, slot: Slot) -> None:
    table = [BlockId(105), BlockId(37), BlockId(912)]

    assert locate(table, position, 16) == slot


@given(start=st.integers(0, 500), num_tokens=st.integers(0, 500))
def test_a_run_of_tokens_never_touches_more_blocks_than_its_bound(
    start: int, num_tokens: int
) -> None:
    touched = {position // 16 for position in range(start, start + num_tokens)}

    assert len(touched) <= max_blocks_touched(num_tokens, 16)


def test_the_bound_on_blocks_touched_is_reached() -> None:
    assert len({position // 16 for position in range(15, 15 + 18)}) == 3
    assert max_blocks_touched(18, 16) == 3
