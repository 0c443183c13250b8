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
    """Block tables as [groups, rows, blocks] int32, and one `State` for each row."""

    def __init__(self, num_groups: int) -> None:
        # One array for all groups: a step indexes it once, however many there are.
        self._tables = np.full((num_groups, INITIAL_ROWS, INITIAL_BLOCKS), NO_BLOCK, np.int32)
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
            self._tables[group, row, :length] = NO_BLOCK
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
            self._tables[group, row, index] = block
        for group, blocks in enumerate(chunk.new_block_ids):
            if blocks:
                begin, end = lengths[group], lengths[group] + len(blocks)
                if end > self._tables.shape[2]:
                    self._grow_blocks(end)
                self._tables[group, row, begin:end] = blocks
                lengths[group] = end
        return row

    def cut(self, request_id: RequestId, num_blocks: int) -> None:
        """Drop the entries from `num_blocks` on, which drafts that were wrong had brought."""
        row = self._row_of[request_id]
        for group, length in enumerate(self._lengths[row]):
            self._tables[group, row, num_blocks:length] = NO_BLOCK
            self._lengths[row][group] = min(length, num_blocks)

    def tables(self, rows: Sequence[int], num_blocks: int) -> NDArray[np.int32]:
        """[G, R, num_blocks] int32: a copy of the first columns of some rows."""
        return np.ascontiguousarray(self._tables[:, rows, :num_blocks])

    def slots(
        self, rows: NDArray[np.int32], positions: NDArray[np.int32], block_size: int
    ) -> NDArray[np.int64]:
        """[G, T] int64: block_id * block_size + offset for each token, given row and position."""
        blocks, offsets = np.divmod(positions, block_size)
        slots = self._tables[:, rows, blocks].astype(np.int64, order="C")
        slots *= block_size
        slots += offsets
        return slots

    def _grow_rows(self) -> None:
        num_groups, before, _ = self._tables.shape
        more = np.full_like(self._tables, NO_BLOCK)
        self._tables = np.concatenate([self._tables, more], axis=1)
        self._lengths += [[0] * num_groups for _ in range(before)]
        self._free += range(2 * before - 1, before - 1, -1)

    def _grow_blocks(self, wanted: int) -> None:
        num_groups, num_rows, width = self._tables.shape
        wider = np.full((num_groups, num_rows, max(wanted, 2 * width)), NO_BLOCK, np.int32)
        wider[:, :, :width] = self._tables
        self._tables = wider
