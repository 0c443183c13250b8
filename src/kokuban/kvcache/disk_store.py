"""Keeps KV blocks on disk: content-addressed, bounded in bytes, proved on every read.

Owns: one namespace directory. Asks: `SlotTable` which block lies where and which one goes,
`Segments` to move bytes, `DiskIndex` to remember, `SlotFormat` whether bytes are what they should
be. Never: wrong bytes, or an exception because of what the disk did.

A block that cannot be proved is not there: it is dropped and counted. A disk that cannot be written
stops writing for a while, with one warning, and reading goes on.
"""

import logging
import os
import sqlite3
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kokuban.core.errors import ConfigError
from kokuban.kvcache import disk_index, namespace
from kokuban.kvcache.disk_index import DiskIndex, IndexRow
from kokuban.kvcache.namespace import Description, Geometry
from kokuban.kvcache.pool import BlockContent
from kokuban.kvcache.segments import Segments
from kokuban.kvcache.slot_format import Bytes, SlotFormat
from kokuban.kvcache.slot_table import SlotTable
from kokuban.kvcache.write_pause import Clock, WritePause

SEGMENT_BYTES = 1 << 30
"""Of one file, so that a terabyte is a thousand files."""

_OTHER_BYTES = 64 << 10
"""Counted for the lock, the description and the directory."""

_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class DiskCounters:
    """What happened since the store was opened."""

    written: int = 0
    """Blocks that were not there before."""

    read: int = 0
    """Blocks given out, each one proved."""

    bad: int = 0
    """Blocks that were on the list and could not be proved or read. They are dropped."""

    refused: int = 0
    """Blocks not written, because the disk failed or did so a short while ago."""

    evicted: int = 0
    """Blocks that made room for others."""

    lost_at_open: int = 0
    """Blocks on the list at the start for which there was no slot, or none within the limit."""


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What `DiskStore.verify` found."""

    num_blocks: int
    """Blocks that were read, bad ones included."""

    bad: tuple[BlockContent, ...]


class DiskStore:
    """KV blocks of one size in one directory, which no other process can open meanwhile.

    `contains`, `touch`, `contents`, `counters`, `num_blocks` and `num_bytes` may be called by any
    thread: they touch no file. All else belongs to one thread at a time. O(1) for each block.
    """

    def __init__(
        self,
        *,
        descriptors: tuple[int, ...],
        files: Segments,
        index: DiskIndex,
        slots: SlotFormat,
        table: SlotTable,
        clock: Clock,
    ) -> None:
        """Use `open`.

        Args:
            descriptors: closed at the end, in this order: the lock and its directory.
        """
        self.counters = DiskCounters()
        self._descriptors = descriptors
        self._files = files
        self._index = index
        self._format = slots
        self._table = table
        self._pause = WritePause(clock)
        self._closed = False

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        payload_bytes: int,
        max_bytes: int | None,
        secret: bytes,
        facts: Mapping[str, str],
        clock: Clock = time.monotonic,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> "DiskStore":
        """Open a namespace, made if it is not there; what it cannot prove or hold is dropped.

        Args:
            payload_bytes: of every block.
            max_bytes: of all files together, the index included. None: no limit.
            secret: 16 to 64 bytes of this installation. Blocks of another secret are deleted.
            facts: what the blocks are, for people: model, kv_dtype, layout.
            segment_bytes: of one file; blocks of another size of file are deleted.

        Raises:
            StoreInUse: another process has it open.
            ConfigError: the limit holds no block, or the directory cannot be used.
        """
        slots = SlotFormat(payload_bytes, secret)
        max_slots = _max_slots(max_bytes, slots.slot_bytes)
        description = Description(_geometry(slots, segment_bytes), dict(facts))
        descriptor = namespace.open_directory(directory, create=True)
        descriptors = [descriptor]
        try:
            descriptors.insert(0, namespace.take_lock(descriptor, directory))
            files = namespace.open_segments(descriptor, directory, description)
            store = cls(
                descriptors=tuple(descriptors),
                files=files,
                index=DiskIndex(directory / namespace.INDEX_NAME),
                slots=slots,
                table=SlotTable(max_slots),
                clock=clock,
            )
            store._recover()
        except OSError as error:
            _close_all(descriptors)
            raise ConfigError(f"{directory} cannot be read: {error.strerror or error}") from error
        except BaseException:
            _close_all(descriptors)
            raise
        return store

    @property
    def payload_bytes(self) -> int:
        return self._format.payload_bytes

    @property
    def num_blocks(self) -> int:
        return self._table.num_blocks

    @property
    def max_blocks(self) -> int:
        """Blocks that fit the limit."""
        return self._table.max_slots

    @property
    def num_bytes(self) -> int:
        """Of all files together. Space that evicted blocks leave is used again, not given back."""
        return self._files.num_bytes + self._index.num_bytes + _OTHER_BYTES

    @property
    def is_paused(self) -> bool:
        """Whether the disk refused to be written, and it is too early to try again."""
        return self._pause.is_on

    def contains(self, content: BlockContent) -> bool:
        """Whether `read_into` is likely to succeed. No lock, no file, not a use."""
        return self._table.contains(content)

    def contents(self) -> tuple[BlockContent, ...]:
        """All blocks, next to be evicted first. Linear."""
        return self._table.contents()

    def touch(self, content: BlockContent) -> bool:
        """Count a use: of all blocks this one is now evicted last. False if it is not there."""
        return self._table.touch(content)

    def put(self, content: BlockContent, payload: Bytes) -> bool:
        """Write a block, in place of the one used longest ago if there is no room.

        Args:
            payload: `payload_bytes` bytes, which must not change meanwhile.

        Returns:
            Whether the block is there now. False: the disk refuses to be written.
        """
        view = memoryview(payload).cast("B")
        assert len(view) == self.payload_bytes, f"{len(view)} bytes, not {self.payload_bytes}"
        if self.touch(content):
            return True
        if self.is_paused:
            self.counters.refused += 1
            return False
        slot, victim = self._table.take()
        self.counters.evicted += victim is not None
        try:
            self._files.write(slot, self._format.header(content, view), view)
        except OSError as error:
            self._table.give_back(slot)
            self.counters.refused += 1
            self._pause.failed(error)
            return False
        self._table.fill(slot, content)
        self.counters.written += 1
        if self.flush():
            self._pause.succeeded()
        return True

    def read_into(self, content: BlockContent, target: Bytes) -> bool:
        """Read a block and prove it.

        Args:
            target: `payload_bytes` bytes, written in place.

        Returns:
            Whether `target` holds the block. False: there is none, or it could not be proved and
            is dropped; `target` holds anything then.
        """
        view = memoryview(target).cast("B")
        assert len(view) == self.payload_bytes, f"{len(view)} bytes, not {self.payload_bytes}"
        slot = self._table.slot_of(content)
        if slot is None:
            return False
        if not self._is_proved(content, slot, view):
            self._drop(content)
            return False
        self.counters.read += 1
        self.touch(content)
        if self._table.num_changed >= disk_index.MAX_ROWS_PER_WRITE and not self.is_paused:
            self.flush()
        return True

    def remove(self, content: BlockContent) -> bool:
        """Forget a block, so that no scan of headers finds it again. False if it is not there."""
        slot = self._table.withdraw(content)
        if slot is None:
            return False
        with suppress(OSError):
            self._files.erase(slot)
        self._table.give_back(slot)
        return True

    def clear(self) -> None:
        """Forget all blocks and give their space back."""
        self._table.clear()
        self._trim()
        self._rebuild_index()

    def verify(self, *, fix: bool = False) -> VerifyReport:
        """Read and prove every block, in the order of the disk. Not a use of any.

        Args:
            fix: drop the bad ones.
        """
        order = self._table.by_slot()
        buffer = memoryview(bytearray(self.payload_bytes))
        bad = tuple(
            content for slot, content in order if not self._is_proved(content, slot, buffer)
        )
        if fix:
            for content in bad:
                self._drop(content)
            self.flush()
        return VerifyReport(num_blocks=len(order), bad=bad)

    def flush(self) -> bool:
        """Let the index know all that changed. False: the disk refuses; tried again later."""
        if not self._index.is_open:
            return self._rebuild_index()
        while rows := self._table.take_changed(disk_index.MAX_ROWS_PER_WRITE):
            try:
                self._index.write(rows)
            except (sqlite3.Error, OSError) as error:
                self._table.mark_changed(row.slot for row in rows)
                self._pause.failed(error)
                return False
        return True

    def close(self) -> None:
        """Write the index and let others open the directory. Nothing else may be called then."""
        if self._closed:
            return
        self._closed = True
        self.flush()
        self._index.close()
        self._files.close()
        _close_all(self._descriptors)

    def check(self) -> None:
        """Assert every invariant. Linear; for tests."""
        self._table.check()

    def _recover(self) -> None:
        """Take over what the last process left, and give back the space of everything else."""
        rows = self._index.load()
        is_current = rows is not None
        if rows is None:
            rows = self._rows_from_headers()
        sound = self._believable(rows)
        self.counters.lost_at_open = len(rows) - len(sound)
        self._table.adopt(sound)
        self._trim()
        # Made anew after losses too: a file of sqlite3 does not shrink when rows are deleted.
        if not is_current or len(sound) < len(rows):
            self._rebuild_index()

    def _rows_from_headers(self) -> list[IndexRow]:
        found = [
            IndexRow(slot, content, 0)
            for slot, header in self._files.headers()
            if (content := self._format.content_of(header)) is not None
        ]
        if found:
            _LOG.warning("%d KV blocks on disk were found by their headers", len(found))
        return found

    def _believable(self, rows: list[IndexRow]) -> list[IndexRow]:
        """The rows that can be true, in order of use: slots that exist, each block once."""
        sound: dict[BlockContent, IndexRow] = {}
        used = self._format.used_bytes
        for row in sorted(rows, key=lambda row: (row.last_used, row.slot)):
            fits = row.slot < self._table.max_slots
            if row.content is not None and fits and self._files.holds(row.slot, used):
                sound.setdefault(row.content, row)
        return list(sound.values())

    def _drop(self, content: BlockContent) -> None:
        if not self.counters.bad:
            _LOG.warning("a KV block on disk is damaged; it and others like it are not used")
        self.counters.bad += 1
        self.remove(content)

    def _is_proved(self, content: BlockContent, slot: int, target: memoryview) -> bool:
        try:
            header = self._files.read(slot, target)
        except OSError as error:
            _LOG.debug("slot %d cannot be read: %s", slot, error)
            return False
        return header is not None and self._format.proves(header, content, target)

    def _rebuild_index(self) -> bool:
        rows = self._table.take_all()
        try:
            self._index.rebuild(rows)
        except (sqlite3.Error, OSError) as error:
            self._pause.failed(error)
            return False
        return True

    def _trim(self) -> None:
        try:
            self._files.trim(self._table.end)
        except OSError as error:
            _LOG.warning("space of KV blocks on disk cannot be given back: %s", error)


def _max_slots(max_bytes: int | None, slot_bytes: int) -> int:
    if max_bytes is None:
        return sys.maxsize
    fixed = disk_index.FIXED_BYTES + _OTHER_BYTES
    each = slot_bytes + disk_index.BYTES_PER_SLOT
    if max_bytes < fixed + each:
        raise ConfigError(
            f"{max_bytes:,} bytes of disk hold no KV block of {slot_bytes:,} bytes with its index; "
            f"allow {fixed + each:,} bytes or more"
        )
    return (max_bytes - fixed) // each


def _geometry(slots: SlotFormat, segment_bytes: int) -> Geometry:
    return Geometry(
        payload_bytes=slots.payload_bytes,
        slot_bytes=slots.slot_bytes,
        slots_per_segment=max(1, segment_bytes // slots.slot_bytes),
        secret_id=slots.secret_id,
    )


def _close_all(descriptors: "tuple[int, ...] | list[int]") -> None:
    for descriptor in descriptors:
        os.close(descriptor)
