"""Owns the files that hold slots: equal pieces, numbered through from one file to the next.

    segment-00000.kv   slots 0 to n - 1
    segment-00001.kv   slots n to 2n - 1 …

Knows nothing of what a slot holds. Files are opened relative to the directory and never through a
symbolic link. They grow as slots are first written and shrink only by `trim`.

Not for more than one thread at a time, `num_bytes` excepted.
"""

import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress

from kokuban.kvcache.slot_format import HEADER_BYTES, Bytes

_NAME = re.compile(r"segment-(\d{5,9})\.kv")
_MAX_OPEN_FILES = 64


class Segments:
    """The slots of one directory.

    Args:
        directory: an open descriptor; the caller keeps it open and closes it.
        slot_bytes: from one slot to the next.
        slots_per_segment: 1 or more.
    """

    def __init__(self, directory: int, *, slot_bytes: int, slots_per_segment: int) -> None:
        self._directory = directory
        self._slot_bytes = slot_bytes
        self._slots_per_segment = slots_per_segment
        self._files: dict[int, int] = {}
        self._sizes = _sizes(directory)
        self._num_bytes = sum(self._sizes.values())

    @property
    def num_bytes(self) -> int:
        """Sizes of all files together. Any thread may ask."""
        return self._num_bytes

    @property
    def num_slots(self) -> int:
        """Slots up to the end of the last file, the last one perhaps in part."""
        last = max(self._sizes, default=0)
        return last * self._slots_per_segment + -(-self._sizes.get(last, 0) // self._slot_bytes)

    def holds(self, slot: int, num_bytes: int) -> bool:
        """Whether the file of a slot is long enough for its first `num_bytes`."""
        segment, offset = self._place(slot)
        return offset + num_bytes <= self._sizes.get(segment, 0)

    def write(self, slot: int, header: bytes, payload: Bytes) -> None:
        """Write a slot. After an OSError it holds anything."""
        segment, offset = self._place(slot)
        try:
            _write_all(self._file(segment, create=True), [header, payload], offset)
        finally:
            self._measure(segment)

    def read(self, slot: int, payload: memoryview) -> bytes | None:
        """Read a slot's payload in place.

        Returns:
            The header; None if the file ends within the slot.

        Raises:
            OSError: it cannot be read.
        """
        segment, offset = self._place(slot)
        header = bytearray(HEADER_BYTES)
        file = self._file(segment)
        total = HEADER_BYTES + len(payload)
        done = os.preadv(file, [header, payload], offset)
        while HEADER_BYTES <= done < total:  # One call gives 2 GiB at most.
            more = os.preadv(file, [payload[done - HEADER_BYTES :]], offset + done)
            if not more:
                return None
            done += more
        return bytes(header) if done >= total else None

    def erase(self, slot: int) -> None:
        """Overwrite the header with zeros, if the file has one there."""
        if self.holds(slot, 1):
            segment, offset = self._place(slot)
            size = min(HEADER_BYTES, self._sizes[segment] - offset)
            _write_all(self._file(segment), [bytes(size)], offset)

    def headers(self) -> Iterator[tuple[int, bytes]]:
        """Each slot's number and header, in order; files that cannot be read are left out."""
        for segment, size in sorted(self._sizes.items()):
            first = segment * self._slots_per_segment
            with suppress(OSError):
                file = self._file(segment)
                for index in range(min(size // self._slot_bytes + 1, self._slots_per_segment)):
                    header = os.pread(file, HEADER_BYTES, index * self._slot_bytes)
                    if len(header) == HEADER_BYTES:
                        yield first + index, header

    def trim(self, num_slots: int) -> None:
        """Give the space of all slots from `num_slots` on back to the file system.

        Raises:
            OSError: a file could be neither shortened nor removed. The others were.
        """
        last, used = divmod(num_slots, self._slots_per_segment)
        failure: OSError | None = None
        for segment, size in list(self._sizes.items()):
            limit = used * self._slot_bytes if segment == last else 0
            if segment < last or 0 < size <= limit:
                continue
            try:
                self._cut(segment, limit)
            except OSError as error:
                failure = error
            self._measure(segment)
        if failure is not None:
            raise failure

    def close(self) -> None:
        for file in self._files.values():
            os.close(file)
        self._files.clear()

    def _place(self, slot: int) -> tuple[int, int]:
        segment, index = divmod(slot, self._slots_per_segment)
        return segment, index * self._slot_bytes

    def _file(self, segment: int, *, create: bool = False) -> int:
        file = self._files.get(segment)
        if file is None:
            if len(self._files) >= _MAX_OPEN_FILES:
                os.close(self._files.pop(next(iter(self._files))))
            flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
            file = os.open(
                _name(segment), flags | (os.O_CREAT if create else 0), 0o600, dir_fd=self._directory
            )
            self._files[segment] = file
        return file

    def _cut(self, segment: int, size: int) -> None:
        if size:
            os.ftruncate(self._file(segment), size)
            return
        if (file := self._files.pop(segment, None)) is not None:
            os.close(file)
        with suppress(FileNotFoundError):
            os.unlink(_name(segment), dir_fd=self._directory)

    def _measure(self, segment: int) -> None:
        before = self._sizes.pop(segment, 0)
        with suppress(FileNotFoundError):
            facts = os.stat(_name(segment), dir_fd=self._directory, follow_symlinks=False)
            self._sizes[segment] = facts.st_size
        self._num_bytes += self._sizes.get(segment, 0) - before


def segment_number(name: str) -> int | None:
    """The number in a segment's file name; None if it is no such name."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match and name == _name(int(match[1])) else None


def _name(segment: int) -> str:
    return f"segment-{segment:05d}.kv"


def remove_strangers(directory: int) -> None:
    """Remove what has the name of a segment and is no regular file, a symbolic link above all."""
    for name in os.listdir(directory):
        if segment_number(name) is not None and not _is_file(name, directory):
            with suppress(OSError):
                os.unlink(name, dir_fd=directory)


def _sizes(directory: int) -> dict[int, int]:
    """Sizes of the segment files in a directory."""
    return {
        segment: os.stat(name, dir_fd=directory, follow_symlinks=False).st_size
        for name in os.listdir(directory)
        if (segment := segment_number(name)) is not None and _is_file(name, directory)
    }


def _is_file(name: str, directory: int) -> bool:
    return stat.S_ISREG(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)


def _write_all(file: int, buffers: Sequence[Bytes], offset: int) -> None:
    """Write all buffers one behind the other; a short write shows its reason at the next try."""
    left = [memoryview(buffer).cast("B") for buffer in buffers]
    while left:
        done = os.pwritev(file, left, offset)
        offset += done
        while left and done >= len(left[0]):
            done -= len(left.pop(0))
        if left:
            left[0] = left[0][done:]
