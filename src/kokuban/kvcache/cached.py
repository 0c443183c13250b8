"""Finds how much of a sequence the pool still has, block by block and then token by token.

    sequence   | block 0 | block 1 | block 2 ............ |
    found      | whole   | whole   | tail: copied |  to be computed

Whole blocks are shared. Behind the last of them, the cached block that goes on with the most of the
sequence's tokens lends these: it is copied, and the copy is written on (copy on write). With
several KV groups a hit goes as far as every group agrees, and a window group needs its window only.

What the pool lacks is looked for in the tiers below it. A tail is found there only if all of it is
the beginning of the sequence's next block: these tiers know contents by key, not by tokens.

Never: changes anything. `Manager.begin` holds what was found.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from kokuban.core.request import NO_BLOCK, BlockId
from kokuban.kvcache.blocks import first_needed
from kokuban.kvcache.contents import BlockContent, BlockKey, Run
from kokuban.kvcache.pool import BlockPool
from kokuban.kvcache.prefix import KeyChain
from kokuban.kvcache.tiers import IN_RAM, ON_DISK, LowerTiers

_PIECE = 64
"""Blocks that are looked up at a time."""


@dataclass(frozen=True, slots=True)
class CachedPrefix:
    """The longest beginning of a sequence that all groups still have, in whatever tier."""

    num_tokens: int
    """Never the last token of the sequence: that one must be computed for its logits."""

    block_ids: tuple[tuple[BlockId, ...], ...]
    """The whole blocks, for each group; IN_RAM or ON_DISK for what must come up first, NO_BLOCK for
    what lies behind its window. `begin` is what holds them."""

    num_tail: int = 0
    """Tokens, of those above, that lie in a block which is not full of them."""

    tail_sources: tuple[BlockId, ...] = ()
    """The block to copy for the tail, for each group; IN_RAM or ON_DISK in all groups if that block
    is below the pool. Empty without a tail."""

    tail_key: BlockKey | None = None
    """Of the block that the tail is in, if that is below the pool. It may have more tokens."""

    @property
    def num_blocks(self) -> int:
        """Blocks that hold it once it has begun, the copy of the tail among them."""
        kept = sum(block != NO_BLOCK for group in self.block_ids for block in group)
        return kept + len(self.tail_sources)

    @property
    def num_below(self) -> int:
        """Blocks that are not in the pool."""
        return self.num_on_disk + self._count(IN_RAM)

    @property
    def num_on_disk(self) -> int:
        """Blocks that are on disk only."""
        return self._count(ON_DISK)

    def num_shared(self, pool: BlockPool) -> int:
        """Whole blocks that somebody holds."""
        return sum(
            block >= 0 and pool.num_holders(block) > 0
            for blocks in self.block_ids
            for block in blocks
        )

    def num_lent(self, pool: BlockPool) -> int:
        """Blocks to copy from that nobody holds."""
        return sum(block >= 0 and pool.num_holders(block) == 0 for block in self.tail_sources)

    def without_tail(self) -> Self:
        """The whole blocks only."""
        return replace(
            self,
            num_tokens=self.num_tokens - self.num_tail,
            num_tail=0,
            tail_sources=(),
            tail_key=None,
        )

    def _count(self, place: BlockId) -> int:
        return sum(blocks.count(place) for blocks in (*self.block_ids, self.tail_sources))


@dataclass(frozen=True, slots=True)
class _Search:
    """How far down one search goes."""

    tiers: LowerTiers | None
    disk: bool

    def below(self, content: BlockContent) -> BlockId:
        """Where a content is that the pool lacks, or NO_BLOCK."""
        if self.tiers is None:
            return NO_BLOCK
        place = self.tiers.find(content)
        return NO_BLOCK if place == ON_DISK and not self.disk else place


class PrefixFinder:
    """Looks into the index of a pool, and into the tiers below it.

    Args:
        windows: for each KV group the tokens it looks back, its own included; None: all of them.
        partial_tails: whether a hit may end inside a block.
        tiers: what lies below the pool, if anything.
    """

    def __init__(
        self,
        pool: BlockPool,
        *,
        block_size: int,
        windows: Sequence[int | None],
        partial_tails: bool,
        tiers: LowerTiers | None = None,
    ) -> None:
        self._pool = pool
        self._block_size = block_size
        self._windows = tuple(windows)
        self._partial_tails = partial_tails
        self._tiers = tiers

    def find(
        self,
        chain: KeyChain | None,
        token_ids: Sequence[int],
        *,
        below: bool = True,
        disk: bool = True,
    ) -> CachedPrefix:
        """The longest beginning of the sequence; without a chain, nothing.

        Args:
            below: whether to look below the pool.
            disk: whether to look on disk.
        """
        if chain is None:
            return CachedPrefix(0, ((),) * len(self._windows))
        search = _Search(self._tiers if below else None, disk=disk)
        hits = self._hits(search, chain, token_ids)
        count = self._num_whole_blocks(hits)
        behind = [self._num_behind(window, count) for window in self._windows]
        whole = CachedPrefix(
            count * self._block_size,
            tuple(
                (NO_BLOCK,) * num + tuple(blocks[num:count])
                for num, blocks in zip(behind, hits, strict=True)
            ),
        )
        if not self._partial_tails:
            return whole
        num_tail, sources, key = self._tail(search, chain, token_ids, count)
        return replace(
            whole,
            num_tokens=whole.num_tokens + num_tail,
            num_tail=num_tail,
            tail_sources=sources,
            tail_key=key,
        )

    def _hits(
        self, search: _Search, chain: KeyChain, token_ids: Sequence[int]
    ) -> list[list[BlockId]]:
        """For each group where its blocks are, of those that every full group has from the start.

        NO_BLOCK for a block that a window group lacks.
        """
        limit = (len(token_ids) - 1) // self._block_size
        hits: list[list[BlockId]] = [[] for _ in self._windows]
        for group, window in enumerate(self._windows):
            if window is None:
                hits[group] = self._leading_hits(search, group, chain, token_ids, limit)
                limit = len(hits[group])
        for group, window in enumerate(self._windows):
            if window is not None:
                keys = chain.keys(token_ids, limit)
                hits[group] = [
                    search.below(BlockContent(group, key)) if block == NO_BLOCK else block
                    for key, block in zip(keys, self._pool.hits(group, keys), strict=True)
                ]
        return hits

    def _leading_hits(
        self,
        search: _Search,
        group: int,
        chain: KeyChain,
        token_ids: Sequence[int],
        limit: int,
    ) -> list[BlockId]:
        """Blocks from the start. Makes few keys beyond the first miss: a new prompt may be long."""
        found: list[BlockId] = []
        while len(found) < limit:
            count = min(limit, len(found) + _PIECE)
            keys = chain.keys(token_ids, count, first=len(found))
            for key, block in zip(keys, self._pool.hits(group, keys), strict=True):
                place = search.below(BlockContent(group, key)) if block == NO_BLOCK else block
                if place == NO_BLOCK:
                    return found
                found.append(place)
        return found

    def _num_whole_blocks(self, hits: Sequence[Sequence[BlockId]]) -> int:
        """The longest prefix that every group could go on from."""
        windows = [
            (window, _num_in_a_row(blocks))
            for window, blocks in zip(self._windows, hits, strict=True)
            if window is not None
        ]
        for count in range(min(map(len, hits)), 0, -1):
            if all(
                row[count] >= count - self._num_behind(window, count) for window, row in windows
            ):
                return count
        return 0

    def _num_behind(self, window: int | None, count: int) -> int:
        """Of `count` whole blocks, those that lie wholly behind the window."""
        if window is None:
            return 0
        return first_needed(count * self._block_size, window, self._block_size)

    def _tail(
        self, search: _Search, chain: KeyChain, token_ids: Sequence[int], index: int
    ) -> tuple[int, tuple[BlockId, ...], BlockKey | None]:
        """Tokens of block `index` that can be had, where from in each group, under which key."""
        start = index * self._block_size
        # Not the sequence's last token, nor a whole block: that would have been found as one.
        end = min(start + self._block_size, len(token_ids)) - 1
        wanted = tuple(token_ids[start:end])
        runs = self._runs(chain.parent(token_ids, index), wanted)
        length = min((run.length for run in runs), default=0)
        if search.tiers is not None:
            # A block that has the sequence's last token too lends the others.
            for filled in range(min(self._block_size, len(token_ids) - start), length, -1):
                key = chain.tail_key(token_ids, start + filled)
                places = [search.below(BlockContent(g, key)) for g in range(len(self._windows))]
                if NO_BLOCK not in places:
                    return min(filled, len(wanted)), tuple(places), key
        return length, tuple(run.block for run in runs), None

    def _runs(self, parent: BlockKey, wanted: tuple[int, ...]) -> list[Run]:
        """For each group the pool's block that begins most like `wanted`; empty if one has none."""
        runs = []
        for group in range(len(self._windows)):
            run = self._pool.longest_run(BlockContent(group, parent), wanted)
            if run is None:
                return []
            runs.append(run)
        return runs


def _num_in_a_row(blocks: Sequence[BlockId]) -> list[int]:
    """Entry i: how many blocks in a row, the last of them block i - 1, are there."""
    counts = [0]
    for block in blocks:
        counts.append(0 if block == NO_BLOCK else counts[-1] + 1)
    return counts
