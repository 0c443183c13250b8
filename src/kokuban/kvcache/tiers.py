"""What lies below the pool: host memory, and below that the disk.

    pool ──(freed: BlockStore, in a step)──▶ host memory ──(write behind)──▶ disk
    pool ◀──(BlockLoad, in a step)────────── host memory ◀──(Fetch)───────── disk

Contents have the same names in every tier. Between pool and host memory blocks move inside steps,
in the order in which they were planned, so nothing waits and nothing can be overtaken. Between host
memory and disk one thread moves them; what it brings is checked before anybody can find it.

A freed block is remembered first and copied down later: a few with each step, all when the engine
is idle, and at the latest when the block is handed out again, in the very step that overwrites it.

Owns: what is where below the pool, and what is on its way. Never: a byte of KV.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from kokuban.core.request import NO_BLOCK, BlockId
from kokuban.core.step import BlockLoad, BlockMove, BlockStore
from kokuban.kvcache.contents import BlockContent
from kokuban.kvcache.disk_port import Disk, DiskJob
from kokuban.kvcache.events import EventLog
from kokuban.kvcache.host_slots import HostSlots

IN_RAM = BlockId(-2)
ON_DISK = BlockId(-3)
"""Stand in the place of a block id for a content that the pool lacks."""

MAX_FETCHES = 4
"""Requests that may wait for the disk at a time: each keeps slots of host memory pinned."""


@dataclass(slots=True, eq=False)
class Fetch:
    """Contents that one waiting request wants up from disk."""

    num_pending: int = 0
    slots: list[int] = field(default_factory=list)
    """Pinned for it."""

    ended: bool = False

    @property
    def done(self) -> bool:
        """Whether all that could be brought up is in host memory."""
        return self.num_pending == 0


@dataclass(slots=True)
class _Read:
    slot: int
    waiting: list[Fetch]
    forgotten: bool = False
    """Its content was to be forgotten meanwhile."""


@dataclass(slots=True)
class TierTotals:
    """Blocks moved since the start."""

    stored: int = 0
    loaded: int = 0
    dropped: int = 0
    """Freed while all of host memory was in use."""

    fetched: int = 0
    fetch_failures: int = 0
    """Contents that the disk was to have and could not give."""

    spilled: int = 0
    """Written to disk."""

    spill_failures: int = 0
    """Not written: the disk could not, or host memory gave the slot to another block first."""


class TierStats(NamedTuple):
    """What one tier below the pool has, and what has happened since the start, in blocks."""

    tier: Literal["ram", "disk"]
    blocks: int
    capacity: int
    """0 where it is not known."""

    written: int
    read: int
    dropped: int
    """Not kept for want of room, or of time."""

    failed: int
    """Asked for and not there, or not right."""


class LowerTiers:
    """See the module. Single caller: the engine thread.

    Args:
        num_slots: blocks that host memory holds; 1 or more.
        disk: what lies below that, if anything.
        log: told what host memory and disk have from now on, and of what turned out to be gone.
            What the disk evicts by itself is told when somebody asks for it in vain.
    """

    def __init__(
        self, num_slots: int, disk: Disk | None = None, log: EventLog | None = None
    ) -> None:
        assert num_slots >= 1, "lower tiers without host memory"
        self._host = HostSlots(num_slots, log)
        self._log = log
        self._disk = disk
        self._to_store: OrderedDict[BlockId, BlockContent] = OrderedDict()
        self._to_spill: OrderedDict[BlockContent, None] = OrderedDict()
        self._reads: dict[BlockContent, _Read] = {}
        self._fetches: set[int] = set()
        self._from_disk: set[int] = set()
        self._num_polled = 0
        self.totals = TierTotals()

    @property
    def version(self) -> int:
        """Changes whenever `find` may give a better answer than before."""
        return self._host.version + self._num_polled

    @property
    def num_slots(self) -> int:
        return self._host.num_slots

    @property
    def num_in_ram(self) -> int:
        """Contents in host memory."""
        return len(self._host)

    @property
    def num_pinned(self) -> int:
        """Slots that are being read, written or kept for somebody who waits."""
        return self._host.num_slots - self._host.num_available

    @property
    def num_to_store(self) -> int:
        """Blocks that are to be copied down."""
        return len(self._to_store)

    @property
    def num_to_spill(self) -> int:
        """Blocks in host memory that are still to be written to disk."""
        return len(self._to_spill)

    def stats(self) -> tuple[TierStats, ...]:
        """Host memory, and the disk if there is one."""
        totals = self.totals
        ram = TierStats(
            "ram", self.num_in_ram, self.num_slots, totals.stored, totals.loaded, totals.dropped, 0
        )
        if self._disk is None:
            return (ram,)
        disk = TierStats(
            "disk",
            self._disk.num_blocks,
            self._disk.max_blocks,
            totals.spilled,
            totals.fetched,
            totals.spill_failures,
            totals.fetch_failures,
        )
        return ram, disk

    def find(self, content: BlockContent) -> BlockId:
        """IN_RAM, ON_DISK, or NO_BLOCK for a content that neither has."""
        if self._host.find(content) is not None:
            return IN_RAM
        if self._disk is not None and self._disk.contains(content):
            return ON_DISK
        return NO_BLOCK

    def freed(self, block: BlockId, content: BlockContent) -> None:
        """Remember to copy down a block that nobody holds any more."""
        slot = self._host.find(content)
        if slot is None:
            self._to_store.setdefault(block, content)
        else:
            self._host.touch(slot)

    def forget_stores(self, blocks: Iterable[BlockId]) -> None:
        """Do not copy down these blocks after all."""
        for block in blocks:
            self._to_store.pop(block, None)

    def forget(self, contents: Iterable[BlockContent]) -> None:
        """Have these contents found no more, here or on disk: they may be wrong."""
        wrong = set(contents)
        self.forget_stores([b for b, content in self._to_store.items() if content in wrong])
        for content in wrong:
            self._to_spill.pop(content, None)
            self._host.forget(content)
            if (read := self._reads.get(content)) is not None:
                read.forgotten = True
            if self._disk is not None:
                self._disk.forget(content)

    def before_reuse(self, blocks: Iterable[BlockId]) -> list[BlockMove]:
        """Copies of those that have just been handed out and were still to be copied down."""
        if not self._to_store:
            return []
        contents = [(block, self._to_store.pop(block, None)) for block in blocks]
        return self._store((block, content) for block, content in contents if content is not None)

    def drain(self, most: int) -> list[BlockMove]:
        """Copies of the blocks freed longest ago: so many at most, and no more than the disk takes.

        The rest stays in the pool, where it is as good.
        """
        if self._disk is not None:
            most = min(most, self._disk.room - len(self._to_spill))
        moves: list[BlockMove] = []
        while self._to_store and len(moves) < most:
            moves += self._store([self._to_store.popitem(last=False)])
        return moves

    def hold(self, content: BlockContent) -> int:
        """The slot of a content that is IN_RAM, pinned until `committed` is told of its load."""
        slot = self._host.find(content)
        assert slot is not None, "a content was to be loaded that is not in host memory"
        self._host.pin(slot)
        return slot

    def came_from_disk(self, slot: int) -> bool:
        """Whether a slot was filled from disk and is loaded for the first time since."""
        known = slot in self._from_disk
        self._from_disk.discard(slot)
        return known

    def committed(self, moves: Iterable[BlockMove]) -> None:
        """Note that the step with these moves has been made: their slots hold what they should."""
        for move in moves:
            match move:
                case BlockStore(_, slot):
                    self.totals.stored += 1
                    content = self._host.content(slot)
                    if self._disk is not None and content is not None:
                        self._to_spill[content] = None
                    self._host.unpin(slot)
                case BlockLoad(slot, _):
                    self.totals.loaded += 1
                    self._host.unpin(slot)
        self._spill()

    def can_fetch(self) -> bool:
        """Whether another request may wait for the disk."""
        return len(self._fetches) < MAX_FETCHES

    def fetch(self, contents: Sequence[BlockContent]) -> Fetch:
        """Bring contents up from disk, in this order, as far as host memory has room.

        Contents that are in host memory already stay there until `end_fetch`.
        """
        assert self._disk is not None, "nothing to fetch from"
        fetch = Fetch()
        self._fetches.add(id(fetch))
        for content in contents:
            slot = self._host.find(content)
            read = self._reads.get(content)
            if slot is not None:
                self._host.pin(slot)
                fetch.slots.append(slot)
            elif read is not None:
                read.waiting.append(fetch)
                fetch.num_pending += 1
            else:
                slot = self._host.reserve()
                if slot is None:
                    break
                self._from_disk.discard(slot)
                self._reads[content] = _Read(slot, [fetch])
                fetch.num_pending += 1
                self._disk.read(content, slot)
        return fetch

    def end_fetch(self, fetch: Fetch) -> None:
        """Let go of what a request waited for: it begins, or it has gone."""
        assert not fetch.ended, "a fetch ends twice"
        fetch.ended = True
        self._fetches.discard(id(fetch))
        for slot in fetch.slots:
            self._host.unpin(slot)
        fetch.slots.clear()

    def poll(self) -> None:
        """Take in what the disk has done since the last call."""
        if self._disk is None:
            return
        for job in self._disk.take_done():
            self._num_polled += 1
            if job.kind == "write":
                self.totals.spilled += job.ok
                if job.ok and self._log is not None:
                    self._log.stored("disk", job.content.group, job.content.key, None, ())
                self.totals.spill_failures += not job.ok
                self._host.unpin(job.slot)
            else:
                self._finish_read(job)
        self._spill()

    def clear(self) -> int:
        """Forget everything, on disk too; returns how many contents host memory had."""
        self._to_store.clear()
        self._to_spill.clear()
        self._from_disk.clear()
        if self._disk is not None:
            self._disk.clear()
            if self._log is not None:
                self._log.cleared("disk")
        for read in self._reads.values():
            read.forgotten = True
        return self._host.clear()

    def check(self) -> None:
        """Assert every invariant. Linear."""
        self._host.check()
        assert len(self._fetches) <= MAX_FETCHES, "too many requests wait for the disk"

    def _store(self, pairs: Iterable[tuple[BlockId, BlockContent]]) -> list[BlockMove]:
        moves: list[BlockMove] = []
        for block, content in pairs:
            if self._host.find(content) is not None:
                continue  # Stored from another block meanwhile.
            slot = self._host.reserve()
            if slot is None:
                self.totals.dropped += 1
                continue
            self._from_disk.discard(slot)
            self._host.publish(slot, content)
            moves.append(BlockStore(block, slot))
        return moves

    def _spill(self) -> None:
        """Have slots written to disk, as many as it takes now; each is pinned until then."""
        if self._disk is None:
            return
        for _ in range(min(self._disk.room, len(self._to_spill))):
            content, _ = self._to_spill.popitem(last=False)
            slot = self._host.find(content)
            if slot is None:
                self.totals.spill_failures += 1
            elif not self._disk.contains(content) and self._disk.write(content, slot):
                self._host.pin(slot)

    def _finish_read(self, job: DiskJob) -> None:
        read = self._reads.pop(job.content)
        if job.ok and not read.forgotten and self._host.publish(read.slot, job.content):
            self.totals.fetched += 1
            self._from_disk.add(read.slot)
            for fetch in read.waiting:
                if not fetch.ended:
                    self._host.pin(read.slot)
                    fetch.slots.append(read.slot)
        if not job.ok:
            self.totals.fetch_failures += 1
            if self._log is not None:
                self._log.removed("disk", job.content.group, job.content.key)
        for fetch in read.waiting:
            fetch.num_pending -= 1
        self._host.unpin(read.slot)
