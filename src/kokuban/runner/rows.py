"""The rows of running requests: block tables and sampling state, as arrays that a step indexes.

A request keeps one row for life. Preemption is an end like any other: the row is dropped, and a
new admission brings everything again. Owned by the executor; nobody else writes here.
"""

from collections.abc import Sequence
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from kokuban.core.request import NO_BLOCK, RequestId
from kokuban.core.step import Chunk

State = TypeVar("State")

INITIAL_ROWS, INITIAL_BLOCKS = 64, 64


class Rows(Generic[State]):
    """Block tables of each KV group as [rows, blocks] int32, and one `State` for each row."""

    def __init__(self, num_groups: int) -> None:
        shape = (INITIAL_ROWS, INITIAL_BLOCKS)
        self._tables = [np.full(shape, NO_BLOCK, np.int32) for _ in range(num_groups)]
        self._lengths = [[0] * num_groups for _ in range(INITIAL_ROWS)]
        self._states: dict[int, State] = {}
        self._row_of: dict[RequestId, int] = {}
        self._free = list(range(INITIAL_ROWS - 1, -1, -1))

    def __len__(self) -> int:
        return len(self._row_of)

    def add(self, request_id: RequestId, state: State) -> None:
        """Give a request a row with empty tables."""
        assert request_id not in self._row_of, f"{request_id} has a row already"
        if not self._free:
            self._grow_rows()
        row = self._free.pop()
        self._row_of[request_id] = row
        self._states[row] = state

    def drop(self, request_id: RequestId) -> None:
        """Forget a request; one without a row is ignored (it ended before its first step)."""
        row = self._row_of.pop(request_id, None)
        if row is None:
            return
        del self._states[row]
        for group, length in enumerate(self._lengths[row]):
            self._tables[group][row, :length] = NO_BLOCK
            self._lengths[row][group] = 0
        self._free.append(row)

    def row(self, request_id: RequestId) -> int:
        return self._row_of[request_id]

    def state(self, request_id: RequestId) -> State:
        return self._states[self._row_of[request_id]]

    def extend(self, chunk: Chunk) -> int:
        """Change the entries that the chunk rewrites and append its new blocks.

        Returns:
            The request's row.
        """
        row = self._row_of[chunk.request_id]
        lengths = self._lengths[row]
        for group, index, block in chunk.rewrites:
            assert index < lengths[group], f"{chunk.request_id} rewrites what it does not have"
            self._tables[group][row, index] = block
        for group, blocks in enumerate(chunk.new_block_ids):
            if blocks:
                begin, end = lengths[group], lengths[group] + len(blocks)
                if end > self._tables[group].shape[1]:
                    self._grow_blocks(group, end)
                self._tables[group][row, begin:end] = blocks
                lengths[group] = end
        return row

    def cut(self, request_id: RequestId, num_blocks: int) -> None:
        """Drop the entries from `num_blocks` on, which drafts that were wrong had brought."""
        row = self._row_of[request_id]
        for group, length in enumerate(self._lengths[row]):
            self._tables[group][row, num_blocks:length] = NO_BLOCK
            self._lengths[row][group] = min(length, num_blocks)

    def tables(self, group: int, rows: Sequence[int], num_blocks: int) -> NDArray[np.int32]:
        """[R, num_blocks] int32: a copy of the first columns of some rows."""
        return np.ascontiguousarray(self._tables[group][rows, :num_blocks])

    def slots(
        self, group: int, rows: NDArray[np.int32], positions: NDArray[np.int32], block_size: int
    ) -> NDArray[np.int64]:
        """[T] int64: block_id * block_size + offset for each token, given its row and position."""
        blocks = self._tables[group][rows, positions // block_size].astype(np.int64)
        return blocks * block_size + positions % block_size

    def _grow_rows(self) -> None:
        before = self._tables[0].shape[0]
        for group, table in enumerate(self._tables):
            more = np.full_like(table, NO_BLOCK)
            self._tables[group] = np.concatenate([table, more])
        self._lengths += [[0] * len(self._tables) for _ in range(before)]
        self._free += range(2 * before - 1, before - 1, -1)

    def _grow_blocks(self, group: int, wanted: int) -> None:
        table = self._tables[group]
        width = max(wanted, 2 * table.shape[1])
        wider = np.full((table.shape[0], width), NO_BLOCK, np.int32)
        wider[:, : table.shape[1]] = table
        self._tables[group] = wider
