"""Decides which KV block is handed out next, and knows who holds which.

Owns: each block's number of holders, its place in the free order and the index of contents.
Never: a tensor, a block table, a request.

A free block keeps its content until it is handed out again ("free but cached"). So freeing is
never eviction, and a pool that looks full of old content is as usable as an empty one.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat

from kokuban.core.config import Eviction
from kokuban.core.errors import OutOfBlocks
from kokuban.core.request import NO_BLOCK, BlockId
from kokuban.kvcache.contents import BlockContent as BlockContent
from kokuban.kvcache.contents import BlockKey as BlockKey
from kokuban.kvcache.contents import Child as Child
from kokuban.kvcache.contents import ContentIndex
from kokuban.kvcache.contents import Run as Run
from kokuban.kvcache.events import EventLog
from kokuban.kvcache.eviction import FreeOrder, make_order


class BlockPool:
    """Blocks 0 to N - 1 of one KV pool. A block is held, by one holder or more, or it is free.

    `allocate` takes free blocks in the order of the eviction policy, protected ones last, and
    forgets their content; `lookup` and `retain` revive a free block that still has the content
    somebody needs.

    Args:
        eviction: which free block is handed out next.
        log: told of every full block that can be found from now on, or no longer.

    Single writer: the engine thread. Every method but `check` is O(1) for each block it touches,
    O(log N) with the cost-aware policy.
    """

    def __init__(
        self, num_blocks: int, *, eviction: Eviction = "lru", log: EventLog | None = None
    ) -> None:
        assert num_blocks >= 1, f"a pool of {num_blocks} blocks holds nothing"
        self._num_holders = [0] * num_blocks
        self._num_uses = [0] * num_blocks
        self._worths = [0.0] * num_blocks
        self._index = ContentIndex(num_blocks)
        self._log = log
        self._free = make_order(eviction)
        self._protected_free = make_order(eviction)
        self._protected: Counter[BlockId] = Counter()
        self._lives = [0] * num_blocks
        for block in map(BlockId, range(num_blocks)):
            self._free.add(block, 0.0)

    @property
    def num_blocks(self) -> int:
        """N: all blocks, held and free."""
        return len(self._num_holders)

    @property
    def num_free(self) -> int:
        """Blocks that `allocate` could hand out now, those that can be revived included."""
        return len(self._free) + len(self._protected_free)

    @property
    def num_free_unprotected(self) -> int:
        """Blocks that can be had without taking one that is protected."""
        return len(self._free)

    @property
    def num_published(self) -> int:
        """Blocks that `lookup` can find, held and free."""
        return len(self._index)

    @property
    def num_protected(self) -> int:
        """Blocks that are handed out last."""
        return len(self._protected)

    @property
    def index_version(self) -> int:
        """Changes whenever `lookup` or `longest_run` may give another answer than before."""
        return self._index.version

    def free_order(self) -> tuple[BlockId, ...]:
        """The free blocks, next to be handed out first. Linear; for tests and for people."""
        return tuple(self._iter_free())

    def num_holders(self, block: BlockId) -> int:
        """How often the block is held; 0 when it is free."""
        return self._num_holders[block]

    def allocate(self, count: int) -> list[BlockId]:
        """Hold `count` free blocks, forgetting their old content.

        Raises:
            OutOfBlocks: fewer than `count` are free. Nothing has changed then.
        """
        if count > self.num_free:
            raise OutOfBlocks(
                f"{count} blocks wanted, {self.num_free} of {self.num_blocks} are free"
            )
        taken = []
        for _ in range(count):
            block = (self._free or self._protected_free).pop()
            self._num_holders[block] = self._num_uses[block] = 1
            self._worths[block] = 0.0
            self._forget(block)
            self._protected.pop(block, None)
            self._lives[block] += 1
            taken.append(block)
        return taken

    def lookup(self, content: BlockContent) -> BlockId | None:
        """The block that has `content`, held or free. The caller must `retain` it to use it."""
        block = self._index.find(content)
        return None if block == NO_BLOCK else block

    def leading_hits(self, group: int, keys: Sequence[BlockKey]) -> list[BlockId]:
        """The blocks of one group that have these contents, up to the first that none has."""
        return self._index.leading(group, keys)

    def hits(self, group: int, keys: Sequence[BlockKey]) -> list[BlockId]:
        """For each content of one group the block that has it, or NO_BLOCK."""
        return [self._index.find(BlockContent(group, key)) for key in keys]

    def longest_run(self, parent: BlockContent, token_ids: tuple[int, ...]) -> Run | None:
        """The child of `parent` that begins most like `token_ids`; None if none has the first.

        O(log children). Its holder may write behind the run but never into it.
        """
        return self._index.longest_run(parent, token_ids)

    def is_published(self, block: BlockId) -> bool:
        """Whether somebody may find the block, so that its filled slots must stay as they are."""
        return self._index.content(block) is not None or self._index.child(block) is not None

    def may_be_written(self, block: BlockId) -> bool:
        """Whether a holder of this block is its only reader, now and later."""
        return self._num_holders[block] == 1 and not self.is_published(block)

    def child(self, block: BlockId) -> Child | None:
        """How `longest_run` finds a block, its tokens included; None if it does not."""
        return self._index.child(block)

    def retain(self, block: BlockId) -> None:
        """Add a holder; revives the block if it is free."""
        if self._num_holders[block] == 0:
            self._order_of(block).discard(block)
        self._num_holders[block] += 1
        self._num_uses[block] += 1

    def publish(self, block: BlockId, content: BlockContent, child: Child | None = None) -> bool:
        """Let `lookup` find this held block, now full. The first block with a content keeps it.

        Args:
            child: lets `longest_run` find it too.

        Returns:
            Whether this block is the one that is found.
        """
        assert self._num_holders[block] > 0, f"block {block} is published but nobody holds it"
        if not self._index.add(block, content, child):
            return False
        if self._log is not None:
            parent, token_ids = (child.parent.key, child.token_ids) if child else (None, ())
            self._log.stored("pool", content.group, content.key, parent, token_ids, (block,))
        return True

    def withdraw(self, content: BlockContent) -> None:
        """End `publish`, wherever this content lies: it may not be what its name says."""
        block = self._index.find(content)
        if block != NO_BLOCK:
            self._forget(block)

    def publish_tail(self, block: BlockId, child: Child) -> None:
        """Let `longest_run` find this held block, which will not be filled further.

        Nothing happens if another block has these tokens already.
        """
        assert self._num_holders[block] > 0, f"block {block} is published but nobody holds it"
        assert self._index.child(block) is None, f"block {block} is already published"
        known = self.longest_run(child.parent, child.token_ids)
        if known is None or known.length < len(child.token_ids):
            self._index.add_child(block, child)

    def life(self, block: BlockId) -> int:
        """Counts how often a block was handed out: tells its contents apart."""
        return self._lives[block]

    def demote(self, blocks: Sequence[BlockId]) -> None:
        """Have these free blocks handed out before all others that hold something, in this order.

        Protected ones stay where they are, and so do all while blocks are left that hold nothing.
        """
        first = next(iter(self._free), NO_BLOCK)
        if first != NO_BLOCK and self._holds_nothing(first):
            return
        for block in reversed(blocks):
            assert self._num_holders[block] == 0, f"block {block} is demoted but somebody holds it"
            if block not in self._protected:
                self._free.discard(block)
                self._free.add_first(block)

    def protect(self, block: BlockId) -> int:
        """Hand out this block only when no other is free, until `unprotect` or until that happens.

        Returns:
            Its life, which `unprotect` asks for.
        """
        if block in self._protected or self._num_holders[block] > 0:
            self._protected[block] += 1
        else:
            self._free.discard(block)
            self._protected[block] = 1
            self._protected_free.add(block, self._worths[block])
        return self._lives[block]

    def unprotect(self, block: BlockId, life: int) -> None:
        """End one `protect`; nothing happens if the block was handed out since."""
        if self._lives[block] != life or block not in self._protected:
            return
        self._protected[block] -= 1
        if self._protected[block] > 0:
            return
        if self._num_holders[block] == 0:
            self._protected_free.discard(block)
            self._free.add(block, self._worths[block])
        del self._protected[block]

    def forget_free(self) -> int:
        """Forget the content of every free block, so that only held ones can be found.

        Returns:
            How many blocks had a content. Linear.
        """
        return sum(self._forget(block) for block in self._iter_free())

    def release(self, blocks: Iterable[BlockId], worths: Iterable[float] | None = None) -> None:
        """Drop one holder from each; those left with none become free, first to be reused first.

        Pass a request's blocks tail first: the tail of a prefix is shared least, and without its
        head it is of no use.

        Args:
            worths: for each block what computing it again costs, or None for what it was last
                time. Read by the cost-aware policy, which takes no block for worth less than those
                before it in one call.
        """
        least = 0.0
        for block, worth in zip(blocks, repeat(None) if worths is None else worths, strict=False):
            assert self._num_holders[block] > 0, f"block {block} released more often than held"
            self._num_holders[block] -= 1
            if self._num_holders[block] == 0:
                if worth is not None:
                    least = self._worths[block] = max(least, worth * self._num_uses[block])
                self._order_of(block).add(block, self._worths[block])

    def check(self) -> None:
        """Assert every invariant. Linear; for tests and for an idle engine in debug mode."""
        assert min(self._num_holders) >= 0, "a block has fewer than no holders"
        unheld = {block for block, count in enumerate(self._num_holders) if count == 0}
        free = list(self._iter_free())
        assert len(free) == len(set(free)) == self.num_free, "a block is free twice"
        assert unheld == set(free), "free order and numbers of holders disagree"
        assert set(self._protected_free) == unheld & set(self._protected), "protected: order"
        assert all(count > 0 for count in self._protected.values()), "protected by nobody"
        self._index.check()

    def _forget(self, block: BlockId) -> bool:
        if self._log is not None and (content := self._index.content(block)) is not None:
            self._log.removed("pool", content.group, content.key, (block,))
        return self._index.forget(block)

    def _iter_free(self) -> Iterator[BlockId]:
        yield from self._free
        yield from self._protected_free

    def _order_of(self, block: BlockId) -> FreeOrder:
        return self._protected_free if block in self._protected else self._free

    def _holds_nothing(self, block: BlockId) -> bool:
        return self._index.content(block) is None and self._index.child(block) is None
