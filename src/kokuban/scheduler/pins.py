"""What clients asked to keep, until when, and how much of the pool each tenant may have for it.

A pin has the blocks of a prefix handed out last. It is no promise: a request that runs is worth
more than one that may come. So pins never refuse anybody, and a quota is all that fairness needs.

Owns: the pins, by tenant, and when each ends. Asks: `Keeper` to protect blocks.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Hashable
from dataclasses import dataclass

from kokuban.core.request import BlockId
from kokuban.kvcache.keep import Keeper, Kept

_MIN_STALE = 64
"""The heap of ends is rebuilt when ended pins outnumber the others, and this many besides."""

_Held = tuple[BlockId, int]
"""A block and its life."""


@dataclass(slots=True, eq=False)
class _Pin:
    tenant: str
    name: Hashable
    held: list[_Held]
    until_s: float
    ended: bool = False


class Pins:
    """See the module.

    Args:
        most_blocks: of one tenant.
    """

    def __init__(self, keeper: Keeper, most_blocks: int) -> None:
        self._keeper = keeper
        self._most_blocks = most_blocks
        self._pins: dict[tuple[str, Hashable], _Pin] = {}
        self._ends: list[tuple[float, int, _Pin]] = []
        self._count = 0
        self._held: defaultdict[str, Counter[_Held]] = defaultdict(Counter)
        """For each tenant its blocks, and how many pins have each."""

    def __len__(self) -> int:
        return len(self._pins)

    def room(self, tenant: str) -> int:
        """Blocks that the tenant may pin beside those it has pinned."""
        held = self._held.get(tenant)
        return max(0, self._most_blocks - (len(held) if held else 0))

    def add(self, tenant: str, name: Hashable, kept: Kept, until_s: float) -> int:
        """Pin what the pool has of a prefix, as far as the quota reaches, from its first block on.

        Args:
            name: of the pin; an older one of this name ends, but not its time if that is later.

        Returns:
            Blocks pinned. Those of several pins count once.
        """
        older = self._pins.get((tenant, name))
        if older is not None:
            until_s = max(until_s, older.until_s)
            self.end(tenant, name)
        held = self._take(tenant, kept)
        if held:
            pin = self._pins[tenant, name] = _Pin(tenant, name, held, until_s)
            self._count += 1
            heapq.heappush(self._ends, (until_s, self._count, pin))
            self._drop_stale_ends()
        return len(held)

    def end(self, tenant: str, name: Hashable) -> None:
        """End a pin, if there is one of this name."""
        pin = self._pins.pop((tenant, name), None)
        if pin is not None:
            self._end(pin)

    def expire(self, now_s: float) -> None:
        """End the pins whose time has come."""
        while self._ends and self._ends[0][0] <= now_s:
            pin = heapq.heappop(self._ends)[2]
            if not pin.ended:
                del self._pins[pin.tenant, pin.name]
                self._end(pin)

    def clear(self) -> None:
        """End all pins."""
        for pin in self._pins.values():
            self._end(pin)
        self._pins.clear()
        self._ends.clear()

    def _take(self, tenant: str, kept: Kept) -> list[_Held]:
        counts = self._held[tenant]
        taken: list[_Held] = []
        for block, _ in self._keeper.in_pool(kept):
            held = block, self._keeper.life(block)
            if held not in counts and len(counts) >= self._most_blocks:
                break
            counts[held] += 1
            taken.append(held)
        for block, _ in reversed(taken):  # Last first, as everywhere.
            self._keeper.protect(block)
        if not counts:
            del self._held[tenant]
        return taken

    def _end(self, pin: _Pin) -> None:
        pin.ended = True
        counts = self._held[pin.tenant]
        for held in pin.held:
            counts[held] -= 1
            if counts[held] == 0:
                del counts[held]
            self._keeper.unprotect(*held)
        if not counts:
            del self._held[pin.tenant]

    def _drop_stale_ends(self) -> None:
        if len(self._ends) > 2 * len(self._pins) + _MIN_STALE:
            self._ends = [entry for entry in self._ends if not entry[2].ended]
            heapq.heapify(self._ends)
