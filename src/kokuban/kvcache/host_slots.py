"""Which slot of host memory has which content. A slot holds the bytes of one pool block.

Owns: contents, pins and the order of eviction of the slots. Never: their bytes.
"""

from collections import OrderedDict

from kokuban.kvcache.contents import BlockContent
from kokuban.kvcache.events import EventLog


class HostSlots:
    """Slots 0 to N - 1. A pinned slot is being read or written by somebody and stays as it is.

    The slot used least recently is evicted first. Every method but `check` is O(1).
    """

    def __init__(self, num_slots: int, log: EventLog | None = None) -> None:
        assert num_slots >= 0, f"{num_slots} slots"
        self._num_pins = [0] * num_slots
        self._contents: list[BlockContent | None] = [None] * num_slots
        self._slot_of: dict[BlockContent, int] = {}
        self._empty = list(range(num_slots - 1, -1, -1))
        self._evictable: OrderedDict[int, None] = OrderedDict()
        """Slots with a content and no pin, least recently used first."""

        self._log = log
        self.version = 0
        """Changes whenever `find` may give another answer than before."""

    @property
    def num_slots(self) -> int:
        return len(self._num_pins)

    @property
    def num_available(self) -> int:
        """Slots that `reserve` could give, one after the other."""
        return len(self._empty) + len(self._evictable)

    def __len__(self) -> int:
        """Contents that can be found."""
        return len(self._slot_of)

    def find(self, content: BlockContent) -> int | None:
        """The slot that has this content."""
        return self._slot_of.get(content)

    def content(self, slot: int) -> BlockContent | None:
        """What can be found in a slot."""
        return self._contents[slot]

    def reserve(self) -> int | None:
        """A slot to write to, pinned and without content; None when all are pinned."""
        if self._empty:
            slot = self._empty.pop()
        elif self._evictable:
            slot = self._evictable.popitem(last=False)[0]
            self._forget(slot)
        else:
            return None
        self._num_pins[slot] = 1
        return slot

    def publish(self, slot: int, content: BlockContent) -> bool:
        """Let `find` find a reserved slot; False if another one has this content already."""
        assert self._num_pins[slot] > 0, f"slot {slot} is published but not reserved"
        assert self._contents[slot] is None, f"slot {slot} is already published"
        if self._slot_of.setdefault(content, slot) != slot:
            return False
        self._contents[slot] = content
        self.version += 1
        if self._log is not None:
            self._log.stored("ram", content.group, content.key, None, (), (slot,))
        return True

    def touch(self, slot: int) -> None:
        """Make a slot with a content the most recently used one, unless it is pinned."""
        if slot in self._evictable:
            self._evictable.move_to_end(slot)

    def pin(self, slot: int) -> None:
        """Keep a slot as it is until `unpin`, which must be called as often."""
        self._evictable.pop(slot, None)
        self._num_pins[slot] += 1

    def unpin(self, slot: int) -> None:
        """Drop a pin; without any, the slot is the most recently used one, or empty."""
        assert self._num_pins[slot] > 0, f"slot {slot} is unpinned more often than pinned"
        self._num_pins[slot] -= 1
        if self._num_pins[slot] == 0:
            if self._contents[slot] is None:
                self._empty.append(slot)
            else:
                self._evictable[slot] = None

    def forget(self, content: BlockContent) -> None:
        """Have a content found no more; a pinned slot is empty once nobody needs it."""
        slot = self._slot_of.get(content)
        if slot is not None:
            self._forget(slot)
            if self._num_pins[slot] == 0:
                del self._evictable[slot]
                self._empty.append(slot)

    def clear(self) -> int:
        """Forget all contents, those of pinned slots too; returns how many there were."""
        count = len(self._slot_of)
        for slot in list(self._slot_of.values()):
            self._forget(slot)
        self._empty += self._evictable
        self._evictable.clear()
        return count

    def check(self) -> None:
        """Assert every invariant. Linear."""
        known = {content: slot for slot, content in enumerate(self._contents) if content}
        assert known == self._slot_of, "contents and index of the slots disagree"
        assert min(self._num_pins, default=0) >= 0, "a slot has fewer than no pins"
        for slot, pins in enumerate(self._num_pins):
            is_evictable = pins == 0 and self._contents[slot] is not None
            assert (slot in self._evictable) == is_evictable, f"slot {slot}: order of eviction"
        empty = {slot for slot, pins in enumerate(self._num_pins) if not pins} - set(
            self._evictable
        )
        assert sorted(self._empty) == sorted(empty), "empty slots"

    def _forget(self, slot: int) -> None:
        content = self._contents[slot]
        assert content is not None, f"slot {slot} has no content"
        del self._slot_of[content]
        self._contents[slot] = None
        self.version += 1
        if self._log is not None:
            self._log.removed("ram", content.group, content.key, (slot,))
