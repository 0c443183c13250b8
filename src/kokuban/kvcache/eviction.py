"""The order in which free blocks are handed out again: which cached content is lost next.

    LeastRecent   the block that has been free longest
    LeastCostly   the block whose loss is likely to cost least: FLOPs × uses, aged

Either order puts protected blocks behind all others: a pin is no promise that a block stays, only
that everything else goes first, so that pins can never starve a request that runs.
"""

import heapq
import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

from kokuban.core.config import Eviction
from kokuban.core.request import BlockId


class Worth(NamedTuple):
    """What computing a block again costs: attention makes later blocks of a sequence dearer."""

    base: float = 1.0
    """Of the first block, in any unit."""

    slope: float = 0.0
    """What each block costs more than the one before it."""

    def of(self, blocks: Iterable[int]) -> Iterator[float]:
        """For each logical block."""
        return (self.base + self.slope * index for index in blocks)


FLAT = Worth()
"""All blocks cost the same."""


class FreeOrder(Protocol):
    """An ordered set of free blocks."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[BlockId]:
        """Next to be handed out first. Linear, or worse."""
        ...

    def add(self, block: BlockId, worth: float) -> None:
        """Put in a block that has just become free.

        Args:
            worth: what its loss would cost, in any unit; 0 for a block without content.
        """
        ...

    def add_first(self, block: BlockId) -> None:
        """Put in a block that is to be handed out before all others."""
        ...

    def discard(self, block: BlockId) -> None:
        """Take out a block, if it is there."""
        ...

    def pop(self) -> BlockId:
        """Take out the next one. There must be one."""
        ...


def make_order(policy: Eviction) -> FreeOrder:
    """An empty order."""
    return LeastRecent() if policy == "lru" else LeastCostly()


class LeastRecent:
    """First free, first handed out; `worth` is ignored. All O(1)."""

    def __init__(self) -> None:
        # Not a deque: `discard` removes from the middle. Not a dict: finding the first key of a
        # dict that shrinks from the front is linear.
        self._blocks: OrderedDict[BlockId, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def __iter__(self) -> Iterator[BlockId]:
        return iter(self._blocks)

    def add(self, block: BlockId, worth: float) -> None:
        del worth
        self._blocks[block] = None

    def add_first(self, block: BlockId) -> None:
        self._blocks[block] = None
        self._blocks.move_to_end(block, last=False)

    def discard(self, block: BlockId) -> None:
        self._blocks.pop(block, None)

    def pop(self) -> BlockId:
        return self._blocks.popitem(last=False)[0]


class LeastCostly:
    """Greedy-dual order: a block's rank is its worth above that of the last block handed out.

    So a block that nobody asks for sinks as others are handed out, whatever it was worth (Cao and
    Irani, "Cost-aware WWW proxy caching algorithms", 1997). Adding is O(log n); a discarded entry
    stays in the heap until it comes up.
    """

    _MIN_STALE = 64

    def __init__(self) -> None:
        self._level = 0.0
        self._count = 0
        self._heap: list[tuple[float, int, BlockId]] = []
        self._live: dict[BlockId, tuple[float, int, BlockId]] = {}

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[BlockId]:
        return (entry[2] for entry in sorted(self._live.values()))

    def add(self, block: BlockId, worth: float) -> None:
        self._count += 1
        self._push((self._level + worth, self._count, block))

    def add_first(self, block: BlockId) -> None:
        self._count += 1
        self._push((-math.inf, -self._count, block))

    def _push(self, entry: tuple[float, int, BlockId]) -> None:
        block = entry[2]
        self._live[block] = entry
        heapq.heappush(self._heap, entry)
        if len(self._heap) > 2 * len(self._live) + self._MIN_STALE:
            self._heap = sorted(self._live.values())

    def discard(self, block: BlockId) -> None:
        self._live.pop(block, None)

    def pop(self) -> BlockId:
        while True:
            entry = heapq.heappop(self._heap)
            if self._live.get(entry[2]) == entry:
                break
        self._level = max(self._level, entry[0])
        del self._live[entry[2]]
        return entry[2]
