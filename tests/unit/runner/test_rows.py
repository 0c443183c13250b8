"""Rows of running requests: block tables and state as arrays that a step indexes."""

import numpy as np
import pytest

from kokuban.core.request import NO_BLOCK, BlockId, RequestId
from kokuban.core.step import BlockRewrite, Chunk
from kokuban.runner.rows import INITIAL_BLOCKS, INITIAL_ROWS, Rows


def chunk(name: str, *groups: list[int]) -> Chunk:
    new = tuple(tuple(map(BlockId, blocks)) for blocks in groups)
    return Chunk(RequestId(name), 0, (1,), new, samples=True)


def test_new_blocks_are_appended_to_each_groups_table() -> None:
    rows: Rows[str] = Rows(num_groups=2)
    rows.add(RequestId("a"), "state of a")

    row = rows.extend(chunk("a", [7, 3], [9]))
    rows.extend(chunk("a", [5], []))

    assert rows.tables([row], 4)[0].tolist() == [[7, 3, 5, NO_BLOCK]]
    assert rows.tables([row], 2)[1].tolist() == [[9, NO_BLOCK]]
    assert rows.state(RequestId("a")) == "state of a"


def test_a_dropped_row_is_used_again_without_its_blocks() -> None:
    rows: Rows[int] = Rows(num_groups=1)
    rows.add(RequestId("a"), 1)
    row = rows.extend(chunk("a", [7, 3]))

    rows.drop(RequestId("a"))
    rows.add(RequestId("b"), 2)

    assert rows.extend(chunk("b", [])) == row
    assert rows.tables([row], 2)[0].tolist() == [[NO_BLOCK, NO_BLOCK]]
    assert len(rows) == 1


def test_dropping_a_request_without_a_row_does_nothing() -> None:
    rows: Rows[int] = Rows(num_groups=1)

    rows.drop(RequestId("never begun"))

    assert len(rows) == 0


def test_tables_grow_in_both_directions_and_keep_what_they_hold() -> None:
    rows: Rows[int] = Rows(num_groups=2)
    names = [RequestId(str(i)) for i in range(2 * INITIAL_ROWS + 1)]
    for i, name in enumerate(names):
        rows.add(name, i)
        rows.extend(chunk(name, [i], [1000 + i]))
    long = list(range(INITIAL_BLOCKS + 5))
    row = rows.extend(chunk("3", long, []))

    assert rows.tables([row], len(long) + 1)[0].tolist() == [[3, *long]]
    for i, name in enumerate(names):
        assert rows.state(name) == i
        assert rows.tables([rows.row(name)], 1)[1].tolist() == [[1000 + i]]


def test_a_slot_is_the_blocks_slot_at_the_tokens_offset() -> None:
    rows: Rows[int] = Rows(num_groups=1)
    rows.add(RequestId("a"), 0)
    row = rows.extend(chunk("a", [4, 2]))
    positions = np.array([0, 15, 16, 31], np.int32)

    slots = rows.slots(np.full(4, row, np.int32), positions, block_size=16)[0]

    assert slots.tolist() == [64, 79, 32, 47]
    assert slots.dtype == np.int64


def test_a_request_has_one_row() -> None:
    rows: Rows[int] = Rows(num_groups=1)
    rows.add(RequestId("a"), 0)

    with pytest.raises(AssertionError, match="a has a row already"):
        rows.add(RequestId("a"), 1)


def test_a_rewritten_entry_takes_the_place_of_the_one_before() -> None:
    rows: Rows[None] = Rows(num_groups=2)
    rows.add(RequestId("a"), None)
    rows.extend(chunk("a", [7, 3], [9, 8]))
    rewrites = (BlockRewrite(0, 1, BlockId(5)), BlockRewrite(1, 1, BlockId(6)))

    row = rows.extend(chunk("a", [4], [2])._replace(rewrites=rewrites))

    assert rows.tables([row], 3)[0].tolist() == [[7, 5, 4]]
    assert rows.tables([row], 3)[1].tolist() == [[9, 6, 2]]
    with pytest.raises(AssertionError, match="a rewrites what it does not have"):
        rows.extend(chunk("a", [], [])._replace(rewrites=(BlockRewrite(0, 3, BlockId(1)),)))


def test_entries_that_are_cut_off_are_given_anew() -> None:
    rows: Rows[str] = Rows(2)
    rows.add(RequestId("a"), "state")
    rows.extend(chunk("a", [1, 2, 3], [4, 5, 6]))

    rows.cut(RequestId("a"), 1)
    rows.cut(RequestId("a"), 2)
    row = rows.extend(chunk("a", [7], [8]))

    assert rows.tables([row], 4).tolist() == [[[1, 7, -1, -1]], [[4, 8, -1, -1]]]
