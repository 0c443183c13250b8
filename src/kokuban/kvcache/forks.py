"""Lets one sequence go on in several ways: they share blocks until one of them writes.

A fork holds the blocks of another request up to some token, the last one, partly filled, included.
Whoever is about to write into a block that others hold or may find gets a copy of it first
(copy on write):

    parent    [ 0 | 1 | 2 ·· ]            [ 0 | 1 | 2 ····w ]
    child     [ 0 | 1 | 2 ·· ]  ──▶       [ 0 | 1 | 7 ··w ]       copy 2 to 7, then write

Owns: nothing; it works on the tables of a `Manager`.
"""

from collections.abc import Callable, Sequence

from kokuban.core.request import NO_BLOCK, BlockId
from kokuban.core.step import BlockCopy, BlockRewrite
from kokuban.kvcache.blocks import first_needed, num_blocks_for
from kokuban.kvcache.pool import BlockPool
from kokuban.kvcache.prefix import KeyChain
from kokuban.kvcache.table import Table

_NONE: Sequence[int] = ()


class Forks:
    """See `Manager`, whose methods of the same names say more.

    Args:
        windows: for each KV group the tokens it looks back, its own included; None: all of them.
        allocate: gives so many blocks, or raises `OutOfBlocks`.
    """

    def __init__(
        self,
        pool: BlockPool,
        *,
        block_size: int,
        windows: Sequence[int | None],
        allocate: Callable[[int], list[BlockId]],
    ) -> None:
        self._pool = pool
        self._block_size = block_size
        self._windows = tuple(windows)
        self._allocate = allocate

    def is_possible(self, parent: Table, num_tokens: int) -> bool:
        """A window group gives back blocks that a shorter sequence would still look at."""
        return parent.num_computed >= num_tokens and all(
            behind <= self._num_behind(window, num_tokens)
            for window, behind in zip(self._windows, parent.num_behind, strict=True)
        )

    def num_shared(self, num_tokens: int) -> int:
        """Whole blocks of a fork, over all groups, without those behind a window."""
        whole = num_tokens // self._block_size
        return sum(whole - self._num_behind(window, num_tokens) for window in self._windows)

    def fork(self, parent: Table, num_tokens: int, chain: KeyChain | None) -> Table:
        """The child's table, whose blocks it holds. O(blocks)."""
        table = Table(len(self._windows), chain)
        table.is_forked = parent.is_forked = True
        count = num_blocks_for(num_tokens, self._block_size)
        for group, window in enumerate(self._windows):
            behind = table.num_behind[group] = self._num_behind(window, num_tokens)
            held = parent.groups[group][behind:count]
            table.groups[group] = [NO_BLOCK] * behind + held
            for block in held:
                self._pool.retain(block)
        table.num_published = num_tokens // self._block_size
        table.num_computed = table.num_written = table.num_grown = num_tokens
        return table

    def groups_to_copy(self, table: Table) -> Sequence[int]:
        """Groups in which the block that is written next is not the request's own."""
        if not table.is_forked:
            return _NONE
        index, num_filled = divmod(table.num_written, self._block_size)
        if num_filled == 0:
            return _NONE
        return [
            group
            for group, blocks in enumerate(table.groups)
            if not self._pool.may_be_written(blocks[index])
        ]

    def copy_on_write(self, table: Table) -> tuple[tuple[BlockCopy, ...], tuple[BlockRewrite, ...]]:
        """Replace what `groups_to_copy` names."""
        groups = self.groups_to_copy(table)
        if not groups:
            return (), ()
        index = table.num_written // self._block_size
        targets = self._allocate(len(groups))
        sources = [table.groups[group][index] for group in groups]
        for group, target in zip(groups, targets, strict=True):
            table.groups[group][index] = target
        # Copies run in order and before all writes, so whoever gets a source now writes later.
        self._pool.release(sources)
        rewrites = tuple(
            BlockRewrite(group, index, target)
            for group, target in zip(groups, targets, strict=True)
            if index < table.num_shown
        )
        return tuple(map(BlockCopy, sources, targets)), rewrites

    def check(self, table: Table) -> None:
        """Assert that what a step in flight writes belongs to this request alone."""
        assert table.num_computed <= table.num_written <= table.num_grown, "written out of order"
        if table.num_written == table.num_grown:
            return
        first = table.num_written // self._block_size
        for blocks in table.groups:
            for block in blocks[first:]:
                assert self._pool.may_be_written(block), f"block {block} is written, but not alone"

    def _num_behind(self, window: int | None, num_tokens: int) -> int:
        """Logical blocks that a sequence of `num_tokens` computed tokens needs no more."""
        return 0 if window is None else first_needed(num_tokens, window, self._block_size)
