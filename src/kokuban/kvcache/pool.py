"""Decides which KV block is handed out next, and knows who holds which.

Owns: each block's number of holders, its place in the free order and the index of contents.
Never: a tensor, a block table, a request.

A free block keeps its content until it is handed out again ("free but cached"). So freeing is
never eviction, and a pool that looks full of old content is as usable as an empty one.
"""

import bisect
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple, NewType

from kokuban.core.errors import OutOfBlocks
from kokuban.core.request import NO_BLOCK, BlockId

BlockKey = NewType("BlockKey", bytes)
"""Names the content of a full block and of all before it; made by `kvcache.prefix`."""


class BlockContent(NamedTuple):
    """What a full block holds: the layers of one KV group, for the tokens that the key names."""

    group: int
    """Index of the KV group."""

    key: BlockKey


class Child(NamedTuple):
    """A block seen from the block before it: found by its first tokens, not by all of them."""

    parent: BlockContent
    """The block before it. For the first block of a sequence the key is the root of its chain."""

    token_ids: tuple[int, ...]
    """One for each slot that is filled: all slots, or fewer at the end of a sequence."""


class Run(NamedTuple):
    """Tokens that a block has in common with a sequence, from its first slot."""

    block: BlockId
    length: int
    """Tokens; 1 or more."""


class BlockPool:
    """Blocks 0 to N - 1 of one KV pool. A block is held, by one holder or more, or it is free.

    `allocate` takes the blocks that have been free longest and forgets their content; `lookup`
    and `retain` revive a free block that still has the content somebody needs.

    Single writer: the engine thread. Every method but `check` is O(1) for each block it touches.
    """

    def __init__(self, num_blocks: int) -> None:
        assert num_blocks >= 1, f"a pool of {num_blocks} blocks holds nothing"
        self._num_holders = [0] * num_blocks
        self._contents: list[BlockContent | None] = [None] * num_blocks
        self._by_content: dict[BlockContent, BlockId] = {}
        self._child_of: list[Child | None] = [None] * num_blocks
        # Sorted, so that the children most like a sequence stand beside the place it would have.
        self._children: dict[BlockContent, list[tuple[tuple[int, ...], BlockId]]] = {}
        self._index_version = 0
        # An ordered set. Not a deque: `retain` removes from the middle. Not a dict: finding the
        # first key of a dict that shrinks from the front is linear.
        self._free = OrderedDict.fromkeys(map(BlockId, range(num_blocks)))

    @property
    def num_blocks(self) -> int:
        """N: all blocks, held and free."""
        return len(self._num_holders)

    @property
    def num_free(self) -> int:
        """Blocks that `allocate` could hand out now, those that can be revived included."""
        return len(self._free)

    @property
    def num_published(self) -> int:
        """Blocks that `lookup` can find, held and free."""
        return len(self._by_content)

    @property
    def index_version(self) -> int:
        """Changes whenever `lookup` or `longest_run` may give another answer than before."""
        return self._index_version

    def free_order(self) -> tuple[BlockId, ...]:
        """The free blocks, next to be handed out first. Linear; for tests and for people."""
        return tuple(self._free)

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
        taken = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block in taken:
            self._num_holders[block] = 1
            self._forget(block)
        return taken

    def lookup(self, content: BlockContent) -> BlockId | None:
        """The block that has `content`, held or free. The caller must `retain` it to use it."""
        return self._by_content.get(content)

    def leading_hits(self, group: int, keys: Sequence[BlockKey]) -> list[BlockId]:
        """The blocks of one group that have these contents, up to the first that none has."""
        found = []
        for key in keys:
            block = self._by_content.get(BlockContent(group, key))
            if block is None:
                break
            found.append(block)
        return found

    def hits(self, group: int, keys: Sequence[BlockKey]) -> list[BlockId]:
        """For each content of one group the block that has it, or NO_BLOCK."""
        return [self._by_content.get(BlockContent(group, key), NO_BLOCK) for key in keys]

    def longest_run(self, parent: BlockContent, token_ids: tuple[int, ...]) -> Run | None:
        """The child of `parent` that begins most like `token_ids`; None if none has the first.

        O(log children). Its holder may write behind the run but never into it.
        """
        siblings = self._children.get(parent, [])
        place = bisect.bisect_left(siblings, (token_ids,))
        runs = [
            Run(block, _num_common(held, token_ids))
            for held, block in siblings[max(0, place - 1) : place + 1]
        ]
        best = max(runs, key=lambda run: run.length, default=None)
        return best if best is not None and best.length else None

    def is_published(self, block: BlockId) -> bool:
        """Whether somebody may find the block, so that its filled slots must stay as they are."""
        return self._contents[block] is not None or self._child_of[block] is not None

    def may_be_written(self, block: BlockId) -> bool:
        """Whether a holder of this block is its only reader, now and later."""
        return self._num_holders[block] == 1 and not self.is_published(block)

    def retain(self, block: BlockId) -> None:
        """Add a holder; revives the block if it is free."""
        self._free.pop(block, None)
        self._num_holders[block] += 1

    def publish(self, block: BlockId, content: BlockContent, child: Child | None = None) -> None:
        """Let `lookup` find this held block, now full. The first block with a content keeps it.

        Args:
            child: lets `longest_run` find it too.
        """
        assert self._num_holders[block] > 0, f"block {block} is published but nobody holds it"
        assert self._contents[block] is None, f"block {block} is already published"
        if self._by_content.setdefault(content, block) == block:
            self._contents[block] = content
            self._index_version += 1
            if child is not None:
                self._add_child(block, child)

    def publish_tail(self, block: BlockId, child: Child) -> None:
        """Let `longest_run` find this held block, which will not be filled further.

        Nothing happens if another block has these tokens already.
        """
        assert self._num_holders[block] > 0, f"block {block} is published but nobody holds it"
        assert self._child_of[block] is None, f"block {block} is already published"
        known = self.longest_run(child.parent, child.token_ids)
        if known is None or known.length < len(child.token_ids):
            self._add_child(block, child)

    def forget_free(self) -> int:
        """Forget the content of every free block, so that only held ones can be found.

        Returns:
            How many blocks had a content. Linear.
        """
        return sum(self._forget(block) for block in self._free)

    def release(self, blocks: Iterable[BlockId]) -> None:
        """Drop one holder from each; those left with none become free, first to be reused first.

        Pass a request's blocks tail first: the tail of a prefix is shared least.
        """
        for block in blocks:
            assert self._num_holders[block] > 0, f"block {block} released more often than held"
            self._num_holders[block] -= 1
            if self._num_holders[block] == 0:
                self._free[block] = None

    def check(self) -> None:
        """Assert every invariant. Linear; for tests and for an idle engine in debug mode."""
        assert min(self._num_holders) >= 0, "a block has fewer than no holders"
        unheld = {block for block, count in enumerate(self._num_holders) if count == 0}
        assert unheld == set(self._free), "free order and numbers of holders disagree"
        published = {
            content: block for block, content in enumerate(self._contents) if content is not None
        }
        assert published == self._by_content, "the index and the contents of blocks disagree"
        children = {
            (child.parent, child.token_ids, block)
            for block, child in enumerate(self._child_of)
            if child is not None
        }
        listed = [
            (parent, token_ids, block)
            for parent, siblings in self._children.items()
            for token_ids, block in siblings
        ]
        assert children == set(listed), "the index of children and the blocks disagree"
        assert len(listed) == len(children), "a child is listed twice"
        assert all(each and each == sorted(each) for each in self._children.values()), "siblings"

    def _forget(self, block: BlockId) -> bool:
        """Take a block out of the index; returns whether it was in it."""
        content, child = self._contents[block], self._child_of[block]
        if content is not None:
            del self._by_content[content]
            self._contents[block] = None
        if child is not None:
            self._remove_child(block, child)
        known = content is not None or child is not None
        self._index_version += known
        return known

    def _add_child(self, block: BlockId, child: Child) -> None:
        self._child_of[block] = child
        bisect.insort(self._children.setdefault(child.parent, []), (child.token_ids, block))
        self._index_version += 1

    def _remove_child(self, block: BlockId, child: Child) -> None:
        self._child_of[block] = None
        siblings = self._children[child.parent]
        del siblings[bisect.bisect_left(siblings, (child.token_ids, block))]
        if not siblings:
            del self._children[child.parent]


def _num_common(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    """Length of the longest common beginning."""
    for index, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return index
    return min(len(left), len(right))
