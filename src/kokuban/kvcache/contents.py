"""The index of what blocks hold: found whole by content, or by their first tokens.

Owns: which block has which content. Never: who holds a block, or whether it is free.
"""

import bisect
from collections.abc import Sequence
from typing import NamedTuple, NewType

from kokuban.core.request import NO_BLOCK, BlockId

BlockKey = NewType("BlockKey", bytes)
"""Names the content of a block and of all before it; made by `kvcache.prefix`."""


class BlockContent(NamedTuple):
    """What a block holds: the layers of one KV group, for the tokens that the key names."""

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


class ContentIndex:
    """What each of some blocks holds. Every method but `check` is O(log siblings) at most."""

    def __init__(self, num_blocks: int) -> None:
        self._contents: list[BlockContent | None] = [None] * num_blocks
        self._by_content: dict[BlockContent, BlockId] = {}
        self._child_of: list[Child | None] = [None] * num_blocks
        # Sorted, so that the children most like a sequence stand beside the place it would have.
        self._children: dict[BlockContent, list[tuple[tuple[int, ...], BlockId]]] = {}
        self.version = 0
        """Changes whenever a search may give another answer than before."""

    def __len__(self) -> int:
        """Contents that `find` knows."""
        return len(self._by_content)

    def find(self, content: BlockContent) -> BlockId:
        """The block that has this content, or NO_BLOCK."""
        return self._by_content.get(content, NO_BLOCK)

    def content(self, block: BlockId) -> BlockContent | None:
        """What a block was added with."""
        return self._contents[block]

    def child(self, block: BlockId) -> Child | None:
        """How `longest_run` finds a block."""
        return self._child_of[block]

    def leading(self, group: int, keys: Sequence[BlockKey]) -> list[BlockId]:
        """The blocks of one group that have these contents, up to the first that none has."""
        found = []
        for key in keys:
            block = self._by_content.get(BlockContent(group, key))
            if block is None:
                break
            found.append(block)
        return found

    def longest_run(self, parent: BlockContent, token_ids: tuple[int, ...]) -> Run | None:
        """The child of `parent` that begins most like `token_ids`; None if none has the first."""
        siblings = self._children.get(parent)
        if siblings is None:
            return None
        place = bisect.bisect_left(siblings, (token_ids,))
        runs = [
            Run(block, num_common(held, token_ids))
            for held, block in siblings[max(0, place - 1) : place + 1]
        ]
        best = max(runs, key=lambda run: run.length)
        return best if best.length else None

    def add(self, block: BlockId, content: BlockContent, child: Child | None = None) -> bool:
        """Note what a block holds; the first block with a content keeps it.

        Returns:
            Whether this block is the one that is found from now on.
        """
        assert self._contents[block] is None, f"block {block} is already published"
        if self._by_content.setdefault(content, block) != block:
            return False
        self._contents[block] = content
        self.version += 1
        if child is not None:
            self.add_child(block, child)
        return True

    def add_child(self, block: BlockId, child: Child) -> None:
        """Let `longest_run` find a block."""
        assert self._child_of[block] is None, f"block {block} is already published"
        self._child_of[block] = child
        bisect.insort(self._children.setdefault(child.parent, []), (child.token_ids, block))
        self.version += 1

    def forget(self, block: BlockId) -> bool:
        """Take a block out; returns whether it could be found."""
        content, child = self._contents[block], self._child_of[block]
        if content is None and child is None:
            return False
        if content is not None:
            del self._by_content[content]
            self._contents[block] = None
        if child is not None:
            self._remove_child(block, child)
        self.version += 1
        return True

    def check(self) -> None:
        """Assert every invariant. Linear."""
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

    def _remove_child(self, block: BlockId, child: Child) -> None:
        self._child_of[block] = None
        siblings = self._children[child.parent]
        del siblings[bisect.bisect_left(siblings, (child.token_ids, block))]
        if not siblings:
            del self._children[child.parent]


def num_common(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the longest common beginning."""
    for index, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return index
    return min(len(left), len(right))
