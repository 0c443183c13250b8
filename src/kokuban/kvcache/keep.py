"""Treats the KV of one sequence as a whole, after its request has ended: protect it, or let it go.

Owns nothing: it finds the sequence's blocks by what they hold, wherever they have come to lie.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kokuban.core.request import BlockId
from kokuban.kvcache.blocks import first_needed
from kokuban.kvcache.contents import BlockContent, Child
from kokuban.kvcache.pool import BlockPool
from kokuban.kvcache.prefix import KeyChain
from kokuban.kvcache.tiers import LowerTiers


@dataclass(frozen=True, slots=True)
class Kept:
    """What a continuation of a sequence needs, first block first."""

    contents: tuple[BlockContent, ...]
    tails: tuple[Child, ...] = ()
    """The last block of each group, where it is not full: the last of `contents`, seen from the
    block before it."""

    num_public: int = 0
    """Of `contents`, from the first on, those that all tenants share."""


class Keeper:
    """See the module. Single caller: the engine thread."""

    def __init__(
        self,
        pool: BlockPool,
        tiers: LowerTiers | None,
        *,
        block_size: int,
        windows: Sequence[int | None],
    ) -> None:
        self._pool = pool
        self._tiers = tiers
        self._block_size = block_size
        self._windows = tuple(windows)

    def name(self, chain: KeyChain, token_ids: Sequence[int], num_tokens: int) -> Kept:
        """The blocks that a continuation of the first `num_tokens` tokens needs.

        Args:
            token_ids: `num_tokens` or more.
        """
        num_whole, num_tail = divmod(num_tokens, self._block_size)
        keys = chain.keys(token_ids, num_whole) if num_whole else []
        first = [
            0 if window is None else first_needed(num_tokens, window, self._block_size)
            for window in self._windows
        ]
        contents = [
            BlockContent(group, key)
            for index, key in enumerate(keys)
            for group in range(len(self._windows))
            if index >= first[group]
        ]
        last_public = min(chain.num_public, num_whole)
        num_public = sum(max(0, last_public - needed) for needed in first)
        if num_tail == 0:
            return Kept(tuple(contents), num_public=num_public)
        key, parent = chain.tail_key(token_ids, num_tokens), chain.parent(token_ids, num_whole)
        tail = tuple(token_ids[num_whole * self._block_size : num_tokens])
        groups = range(len(self._windows))
        return Kept(
            (*contents, *(BlockContent(group, key) for group in groups)),
            tuple(Child(BlockContent(group, parent), tail) for group in groups),
            num_public,
        )

    def in_pool(self, kept: Kept) -> list[tuple[BlockId, BlockContent]]:
        """Those of the blocks that the pool still has, first block first."""
        num_whole = len(kept.contents) - len(kept.tails)
        found = []
        for content in kept.contents[:num_whole]:
            block = self._pool.lookup(content)
            if block is not None:
                found.append((block, content))
        for child, content in zip(kept.tails, kept.contents[num_whole:], strict=True):
            run = self._pool.longest_run(child.parent, child.token_ids)
            if run is not None and run.length == len(child.token_ids):
                found.append((run.block, content))
        return found

    def protect(self, block: BlockId) -> int:
        """See `BlockPool.protect`."""
        return self._pool.protect(block)

    def unprotect(self, block: BlockId, life: int) -> None:
        """See `BlockPool.unprotect`."""
        self._pool.unprotect(block, life)

    def life(self, block: BlockId) -> int:
        """See `BlockPool.life`."""
        return self._pool.life(block)

    def send_down(self, kept: Kept, is_own: Callable[[BlockContent], bool]) -> None:
        """Copy down what is free of these blocks, and have them handed out first.

        Args:
            is_own: whether nobody else is known to want a content; others stay where they are.
        """
        assert self._tiers is not None, "nothing below the pool"
        free = self._free(kept)
        for block, content in free:
            self._tiers.freed(block, content)
        self._pool.demote([block for block, content in free if is_own(content)])

    def let_go(self, kept: Kept, is_own: Callable[[BlockContent], bool]) -> None:
        """Have what is free of these blocks handed out first, without a copy."""
        blocks = [block for block, content in self._free(kept) if is_own(content)]
        if self._tiers is not None:
            self._tiers.forget_stores(blocks)
        self._pool.demote(blocks)

    def _free(self, kept: Kept) -> list[tuple[BlockId, BlockContent]]:
        """Last block first: the tail of a chain is to be lost before its head."""
        public = set(kept.contents[: kept.num_public])
        return [
            (block, content)
            for block, content in reversed(self.in_pool(kept))
            if self._pool.num_holders(block) == 0 and content not in public
        ]
