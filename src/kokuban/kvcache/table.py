"""The block tables of one request, one for each KV group, as its manager keeps them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kokuban.core.request import NO_BLOCK, BlockId, RequestId
from kokuban.core.step import BlockRewrite
from kokuban.kvcache.pool import BlockPool
from kokuban.kvcache.prefix import KeyChain


class Restored(NamedTuple):
    """Tokens of a cached prefix that came up from below the pool."""

    ram_tokens: int = 0
    disk_tokens: int = 0


NOT_RESTORED = Restored()


class Extension(NamedTuple):
    """What a request's tables get for its next tokens."""

    new_block_ids: tuple[tuple[BlockId, ...], ...]
    """For each group, see `Manager.grow`."""

    rewrites: tuple[BlockRewrite, ...]
    """See `Manager.copy_on_write`."""


class Table:
    """What one request holds. Written by `Manager` and its `Forks` alone."""

    def __init__(self, num_groups: int, chain: KeyChain | None) -> None:
        self.groups: list[list[BlockId]] = [[] for _ in range(num_groups)]
        self.num_behind = [0] * num_groups
        """For each group, the leading entries that are NO_BLOCK."""

        self.num_shown = 0
        """Logical blocks that `grow` has returned."""

        self.num_published = 0
        """Logical blocks that have been published."""

        self.num_computed = 0
        """Tokens that `advance` was told of."""

        self.num_written = 0
        """Tokens whose KV is in the table: computed, found or forked. The next is written next."""

        self.num_grown = 0
        """Tokens that `grow` was asked for, or that were written already."""

        self.is_forked = False
        """Whether another request has, or has had, these blocks by a fork: only then can the block
        that is being filled be somebody else's too."""

        self.chain = chain

    def begin_with(self, hits: Sequence[Sequence[BlockId]]) -> list[BlockId]:
        """Put a cached prefix into tables that are empty.

        Args:
            hits: as `CachedPrefix.block_ids`.

        Returns:
            Those of them that are in the pool, to be held.
        """
        for group, blocks in enumerate(hits):
            self.groups[group].extend(blocks)
            self.num_behind[group] = blocks.count(NO_BLOCK)
        return [block for blocks in hits for block in blocks if block >= 0]

    def leave_behind(self, group: int, count: int) -> list[BlockId]:
        """Make at least the first `count` entries of a group NO_BLOCK.

        Returns:
            What they were, last first, to be released.
        """
        behind, blocks = self.num_behind[group], self.groups[group]
        if count <= behind:
            return []
        left = blocks[behind:count]
        blocks[behind:count] = [NO_BLOCK] * len(left)
        self.num_behind[group] = count
        left.reverse()
        return left

    def reaches(self, num_tokens: int, block_size: int) -> bool:
        """Grow to so many tokens if that needs no block, and none is left to be shown."""
        shown = self.num_shown
        if num_tokens > shown * block_size or shown != len(self.groups[0]):
            return False
        if num_tokens > self.num_grown:
            self.num_grown = num_tokens
        return True

    def cut(self, num_logical: int) -> list[BlockId]:
        """Take out the entries from `num_logical` on, which hold nothing, tail first."""
        assert self.num_published <= num_logical, "a published block is cut off"
        taken = [b for blocks in self.groups for b in reversed(blocks[num_logical:])]
        for blocks in self.groups:
            del blocks[num_logical:]
        self.num_shown = min(self.num_shown, num_logical)
        self.num_grown = self.num_written
        return taken

    @property
    def num_logical(self) -> int:
        return len(self.groups[0])

    @property
    def num_held(self) -> int:
        return self.num_logical * len(self.groups) - sum(self.num_behind)


def check_tables(tables: Mapping[RequestId, Table], pool: BlockPool) -> None:
    """Assert that tables are whole, and that together they hold what the pool says is held."""
    holders: Counter[BlockId] = Counter()
    places: dict[BlockId, tuple[int, int]] = {}
    for request_id, table in tables.items():
        lengths = {len(blocks) for blocks in table.groups}
        assert len(lengths) == 1, f"tables of request {request_id} differ in length"
        assert table.num_published <= table.num_logical, f"request {request_id} publishes ahead"
        assert table.num_shown <= table.num_logical, f"request {request_id} shows too much"
        for group, blocks in enumerate(table.groups):
            behind = table.num_behind[group]
            held = blocks[behind:]
            assert blocks[:behind] == [NO_BLOCK] * behind, f"request {request_id}: behind"
            assert NO_BLOCK not in held, f"request {request_id} has a hole in its table"
            holders.update(held)
            for index, block in enumerate(held, start=behind):
                place = places.setdefault(block, (group, index))
                assert place == (group, index), f"block {block} is in two places of sequences"
    for block in map(BlockId, range(pool.num_blocks)):
        counted, known = holders[block], pool.num_holders(block)
        assert counted == known, f"block {block} is in {counted} tables but held {known} times"
