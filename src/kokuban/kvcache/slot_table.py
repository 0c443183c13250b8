"""Knows which block lies in which slot of a disk store, and which goes next. Touches no file.

Owns: the order of use, the free slots and the list of slots that the index on disk has not seen.

A slot between being taken and being given a block is in neither list, so that nobody reads it.
"""

import heapq
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from threading import Lock

from kokuban.kvcache.disk_index import IndexRow
from kokuban.kvcache.pool import BlockContent


@dataclass(slots=True)
class _Entry:
    slot: int
    last_used: int


class SlotTable:
    """Slots 0 to `max_slots` - 1, the lowest free one handed out first. O(log slots), any thread.

    A lock is held for moments; `contains` needs none.
    """

    def __init__(self, max_slots: int) -> None:
        self.max_slots = max_slots
        self._lock = Lock()
        self._entries: OrderedDict[BlockContent, _Entry] = OrderedDict()
        self._by_slot: dict[int, BlockContent] = {}
        self._free: list[int] = []
        self._end = 0
        self._changed: dict[int, None] = {}
        self._uses = 0

    @property
    def num_blocks(self) -> int:
        return len(self._entries)

    @property
    def end(self) -> int:
        """All slots from this one on have never been used."""
        return self._end

    @property
    def num_changed(self) -> int:
        """Slots that `take_changed` would give."""
        return len(self._changed)

    def contains(self, content: BlockContent) -> bool:
        return content in self._entries

    def slot_of(self, content: BlockContent) -> int | None:
        """Where a block lies. Not a use."""
        entry = self._entries.get(content)
        return entry.slot if entry is not None else None

    def contents(self) -> tuple[BlockContent, ...]:
        """All blocks, the one used longest ago first."""
        with self._lock:
            return tuple(self._entries)

    def by_slot(self) -> list[tuple[int, BlockContent]]:
        """All blocks in the order of their slots."""
        with self._lock:
            return sorted(self._by_slot.items())

    def adopt(self, rows: Iterable[IndexRow]) -> None:
        """Take over what an earlier process left; for an empty table.

        Args:
            rows: with growing `last_used`, and no slot or block twice.
        """
        with self._lock:
            for row in rows:
                assert row.content is not None, f"slot {row.slot} holds nothing"
                self._entries[row.content] = _Entry(row.slot, row.last_used)
                self._by_slot[row.slot] = row.content
                self._uses = row.last_used
            self._end = max(self._by_slot, default=-1) + 1
            self._free = sorted(set(range(self._end)) - set(self._by_slot))

    def touch(self, content: BlockContent) -> bool:
        """Make this block the last one to go. False if there is none."""
        with self._lock:
            return self._use(content)

    def take(self) -> tuple[int, BlockContent | None]:
        """A slot to write: a free one, or that of the block used longest ago.

        Returns:
            The slot, and the block that had to go for it.
        """
        with self._lock:
            if self._free:
                return heapq.heappop(self._free), None
            if self._end < self.max_slots:
                self._end += 1
                return self._end - 1, None
            victim, entry = self._entries.popitem(last=False)
            del self._by_slot[entry.slot]
            return entry.slot, victim

    def fill(self, slot: int, content: BlockContent) -> None:
        """Say that a slot that was taken holds this block now."""
        with self._lock:
            self._by_slot[slot] = content
            self._entries[content] = _Entry(slot, 0)
            self._use(content)

    def withdraw(self, content: BlockContent) -> int | None:
        """Forget a block; its slot is taken until it is given back. None if there is none."""
        with self._lock:
            entry = self._entries.pop(content, None)
            if entry is None:
                return None
            del self._by_slot[entry.slot]
            return entry.slot

    def give_back(self, slot: int) -> None:
        """Free a slot that was taken or withdrawn."""
        with self._lock:
            heapq.heappush(self._free, slot)
            self._changed[slot] = None

    def clear(self) -> None:
        """Forget all blocks and all slots."""
        with self._lock:
            self._entries.clear()
            self._by_slot.clear()
            self._free.clear()
            self._changed.clear()
            self._end = 0

    def take_changed(self, count: int) -> list[IndexRow]:
        """What the index has not seen of `count` slots at most; they count as seen now."""
        with self._lock:
            slots = list(self._changed)[:count]
            for slot in slots:
                del self._changed[slot]
            return [self._row(slot) for slot in slots]

    def take_all(self) -> list[IndexRow]:
        """Everything, for an index that is made anew; it counts as seen now."""
        with self._lock:
            self._changed.clear()
            return [self._row(slot) for slot in sorted(self._by_slot)]

    def mark_changed(self, slots: Iterable[int]) -> None:
        """Say that the index has not seen these after all."""
        with self._lock:
            self._changed.update(dict.fromkeys(slots))

    def check(self) -> None:
        """Assert every invariant, while no slot is taken. Linear; for tests."""
        with self._lock:
            by_slot = {entry.slot: content for content, entry in self._entries.items()}
            assert by_slot == self._by_slot, "blocks and slots disagree"
            assert len(by_slot) == len(self._entries), "two blocks share a slot"
            unused = set(range(self._end)) - set(by_slot)
            assert unused == set(self._free), "free slots and blocks disagree"
            assert len(unused) == len(self._free), "a slot is free twice"
            assert self._end <= self.max_slots, "slots beyond the limit"
            uses = [entry.last_used for entry in self._entries.values()]
            assert uses == sorted(uses), "the order of eviction and the counts of uses disagree"

    def _use(self, content: BlockContent) -> bool:
        entry = self._entries.get(content)
        if entry is None:
            return False
        self._uses += 1
        entry.last_used = self._uses
        self._entries.move_to_end(content)
        self._changed[entry.slot] = None
        return True

    def _row(self, slot: int) -> IndexRow:
        content = self._by_slot.get(slot)
        last_used = self._entries[content].last_used if content is not None else 0
        return IndexRow(slot, content, last_used)
