"""Joins block tables with the tiers below the pool: brings up what they need, sends down what they
leave.

Owns nothing. Asks: `LowerTiers` where contents are, and its manager for blocks.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from kokuban.core.request import NO_BLOCK, BlockId
from kokuban.core.step import BlockLoad, BlockMove
from kokuban.kvcache.cached import CachedPrefix
from kokuban.kvcache.contents import BlockContent
from kokuban.kvcache.pool import BlockPool
from kokuban.kvcache.prefix import KeyChain
from kokuban.kvcache.publish import Publisher
from kokuban.kvcache.table import Restored, Table
from kokuban.kvcache.tiers import IN_RAM, ON_DISK, Fetch, LowerTiers, TierStats


class _Wanted(NamedTuple):
    """A block of a prefix that is not in the pool."""

    logical: int
    """Index of the block in its sequence."""

    group: int
    content: BlockContent


class Below:
    """See the module. Single caller: the manager.

    Args:
        allocate: gives blocks of the pool.
    """

    def __init__(
        self,
        pool: BlockPool,
        tiers: LowerTiers,
        publisher: Publisher,
        block_size: int,
        num_groups: int,
        allocate: Callable[[int], list[BlockId]],
    ) -> None:
        self._pool = pool
        self._tiers = tiers
        self._publisher = publisher
        self._block_size = block_size
        self._num_groups = num_groups
        self._allocate = allocate

    @property
    def has_stores(self) -> bool:
        """Whether blocks are still to be copied down."""
        return self._tiers.num_to_store > 0

    @property
    def has_spills(self) -> bool:
        """Whether blocks are still to be written to disk."""
        return self._tiers.num_to_spill > 0

    def stats(self) -> tuple[TierStats, ...]:
        """What each tier has, from the top."""
        return self._tiers.stats()

    def poll(self) -> None:
        """Take in what the disk has brought and written."""
        self._tiers.poll()

    def end_fetch(self, fetch: Fetch) -> None:
        """Let go of what was fetched: its request begins, or has gone."""
        self._tiers.end_fetch(fetch)

    def fetch(
        self, chain: KeyChain, cached: CachedPrefix, token_ids: Sequence[int]
    ) -> Fetch | None:
        """Begin to bring up what a cached prefix has on disk; None if too many wait for that."""
        if not self._tiers.can_fetch():
            return None
        wanted = self._wanted(chain, cached, token_ids, (IN_RAM, ON_DISK))
        return self._tiers.fetch([each.content for each in wanted])

    def load(
        self, table: Table, chain: KeyChain | None, cached: CachedPrefix, token_ids: Sequence[int]
    ) -> tuple[list[BlockMove], Restored]:
        """Take blocks for what is in host memory.

        Returns:
            The moves that fill them, and how many tokens come up.
        """
        assert chain is not None, "a cached prefix without keys"
        wanted = self._wanted(chain, cached, token_ids, (IN_RAM,))
        # Held before blocks are taken: taking one may send another block's content down.
        slots = [self._tiers.hold(each.content) for each in wanted]
        blocks = self._allocate(len(wanted))
        for (index, group, content), block in zip(wanted, blocks, strict=True):
            if index == len(table.groups[group]):  # The tail.
                table.groups[group].append(block)
                continue
            table.groups[group][index] = block
            child = self._publisher.child(chain, group, index, token_ids)
            self._pool.publish(block, content, child)
        return [*map(BlockLoad, slots, blocks)], self._origin(cached, wanted, slots)

    def send_down(self, table: Table, chain: KeyChain, token_ids: Sequence[int]) -> None:
        """Have those blocks copied down that a released request was the last to hold."""
        full = table.num_published
        keys = dict(enumerate(chain.keys(token_ids, full) if full else ()))
        if table.num_computed > full * self._block_size:
            keys[full] = chain.tail_key(token_ids, table.num_computed)
        for index in sorted(keys, reverse=True):
            for group, blocks in enumerate(table.groups):
                block, content = blocks[index], BlockContent(group, keys[index])
                if block == NO_BLOCK or self._pool.num_holders(block) > 0:
                    continue
                # What was withdrawn meanwhile, or stands elsewhere under this name, stays here.
                is_tail = index == full and self._pool.child(block) is not None
                if is_tail or self._pool.lookup(content) == block:
                    self._tiers.freed(block, content)

    def _wanted(
        self,
        chain: KeyChain,
        cached: CachedPrefix,
        token_ids: Sequence[int],
        places: Sequence[BlockId],
    ) -> list[_Wanted]:
        """What a prefix has in these places, first block first."""
        wanted = [
            _Wanted(index, group, BlockContent(group, chain.key(token_ids, index)))
            for group, blocks in enumerate(cached.block_ids)
            for index, block in enumerate(blocks)
            if block in places
        ]
        if cached.tail_key is not None:
            num_whole = len(cached.block_ids[0])
            wanted += [
                _Wanted(num_whole, group, BlockContent(group, cached.tail_key))
                for group in range(self._num_groups)
            ]
        return sorted(wanted)

    def _origin(
        self, cached: CachedPrefix, wanted: Sequence[_Wanted], slots: Sequence[int]
    ) -> Restored:
        """How many tokens came up, counted once for all groups; from disk if any of them did."""
        fresh = [self._tiers.came_from_disk(slot) for slot in slots]
        disk = {each.logical for each, is_fresh in zip(wanted, fresh, strict=True) if is_fresh}
        ram = {each.logical for each in wanted} - disk

        def count(indices: set[int]) -> int:
            return sum(
                min(self._block_size, cached.num_tokens - index * self._block_size)
                for index in indices
            )

        return Restored(count(ram), count(disk))
