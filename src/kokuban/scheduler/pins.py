"""What clients asked to keep, until when, and how much of the pool each tenant may have for it.

A pin has the blocks of a prefix handed out last. It is no promise: a request that runs is worth
more than one that may come. So pins never refuse anybody, and a quota is all that fairness needs.

Owns: the pins, by tenant, and when each ends. Asks: `Keeper` to protect blocks.
"""

import heapq
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass

from kokuban.core.request import BlockId
from kokuban.kvcache.keep import Keeper, Kept


@dataclass(slots=True, eq=False)
class _Pin:
    tenant: str
    name: Hashable
    blocks: list[BlockId]
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
        self._held: Counter[str] = Counter()

    @property
    def next_end_s(self) -> float | None:
        """When `expire` will have something to do."""
        return self._ends[0][0] if self._ends else None

    def num_blocks(self, tenant: str) -> int:
        """Blocks that count against the tenant's quota."""
        return self._held[tenant]

    def room(self, tenant: str) -> int:
        """Blocks that the tenant may pin beside those it has pinned."""
        return max(0, self._most_blocks - self._held[tenant])

    def add(self, tenant: str, name: Hashable, kept: Kept, until_s: float) -> int:
        """Pin what the pool has of a prefix, as far as the quota reaches, from its first block on.

        Args:
            name: of the pin; an older one of this name ends, but not its time if that is later.

        Returns:
            Blocks pinned; those that another pin has already count for that one.
        """
        older = self._pins.get((tenant, name))
        if older is not None:
            until_s = max(until_s, older.until_s)
            self.end(tenant, name)
        blocks = self._keeper.protect(kept, self.room(tenant))
        pin = _Pin(tenant, name, blocks, until_s)
        self._pins[tenant, name] = pin
        self._held[tenant] += len(blocks)
        self._count += 1
        heapq.heappush(self._ends, (until_s, self._count, pin))
        return len(blocks)

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

    def _end(self, pin: _Pin) -> None:
        pin.ended = True
        self._held[pin.tenant] -= len(pin.blocks)
        self._keeper.unprotect(pin.blocks)
