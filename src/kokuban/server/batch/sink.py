"""The output of a batch: one line for each result, each written in one piece as it comes.

Whatever ends the process, the file holds whole lines and at most half of a last one, which the next
run cuts off.
"""

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
from msgspec import Struct

from kokuban.core.errors import ConfigError, KokubanError
from kokuban.server.batch.lines import BatchResult, digest_of
from kokuban.server.raw_json import UNREADABLE

_BUFFER_BYTES = 2**20


class BatchStopped(KokubanError):
    """A run that cannot go on. What it has done is in the output."""


class _Response(Struct):
    status_code: int


class _Error(Struct):
    line: int | None = None


class _Done(Struct):
    """What matters of a result that stands in the file already."""

    custom_id: str | None
    response: _Response | None = None
    error: _Error | None = None

    @property
    def succeeded(self) -> bool:
        return self.response is not None and self.response.status_code == 200


class Sink:
    """The output, locked while it is open.

    Args:
        path: made when it is not there; results in it are kept.

    Raises:
        ConfigError: it cannot be used: another run has it, or it holds something else.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.digests: set[bytes] = set()
        """Of the custom_ids that have a result."""

        self.numbers: set[int] = set()
        """Of the lines without a custom_id that have one."""

        self.num_failed = 0
        self._file = -1
        try:
            self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            self._lock()
            self._repair()
            self._read()
        except OSError as error:
            self.close()
            raise ConfigError(f"{path} cannot be written: {error.strerror}") from error
        except ConfigError:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def num_done(self) -> int:
        """Results in the file."""
        return len(self.digests) + len(self.numbers)

    def has(self, custom_id: str | None, number: int) -> bool:
        """Whether a line of the input has its result."""
        if custom_id is None:
            return number in self.numbers
        return digest_of(custom_id) in self.digests

    def append(self, result: BatchResult) -> None:
        """Write a result.

        Raises:
            BatchStopped: it could not be written, for instance because the disk is full.
        """
        try:
            _write(self._file, msgspec.json.encode(result) + b"\n")
        except OSError as error:
            raise BatchStopped(
                f"{self.path} cannot be written: {error.strerror}; the same command goes on where "
                f"this one was"
            ) from error
        self._note(result.custom_id, result.error.line if result.error else None)
        self.num_failed += not result.succeeded

    def drop_failed(self) -> None:
        """Forget the results that are no success: in one step the file holds the others only.

        Raises:
            BatchStopped: it could not be written; nothing has changed.
        """
        try:
            self._keep_successes()
        except OSError as error:
            raise BatchStopped(f"{self.path} cannot be written: {error.strerror}") from error
        self.digests.clear()
        self.numbers.clear()
        self.num_failed = 0
        self._read()

    def close(self) -> None:
        """Bring it to the disk; a second call does nothing."""
        if self._file >= 0:
            os.fsync(self._file)
            os.close(self._file)
            self._file = -1

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"{self.path} is being written by another run") from None
        if not os.path.samestat(os.fstat(self._file), self.path.stat()):
            raise ConfigError(f"{self.path} has just been replaced by another run")

    def _repair(self) -> None:
        """Cut off a last line that was not written to its end."""
        end = size = os.fstat(self._file).st_size
        while end > 0:
            start = max(0, end - _BUFFER_BYTES)
            piece = os.pread(self._file, end - start, start)
            if (found := piece.rfind(b"\n")) >= 0:
                end = start + found + 1
                break
            end = start
        if end < size:
            os.ftruncate(self._file, end)

    def _keep_successes(self) -> None:
        beside = self.path.with_name(f"{self.path.name}.part")
        kept = os.open(beside, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            fcntl.flock(kept, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for done, line in self._results():
                if done.succeeded:
                    _write(kept, line)
            os.fsync(kept)
            beside.replace(self.path)
        except BaseException:
            os.close(kept)
            beside.unlink(missing_ok=True)
            raise
        os.close(self._file)
        self._file = kept

    def _read(self) -> None:
        for done, _ in self._results():
            self._note(done.custom_id, done.error.line if done.error else None)
            self.num_failed += not done.succeeded

    def _note(self, custom_id: str | None, number: int | None) -> None:
        if custom_id is not None:
            self.digests.add(digest_of(custom_id))
        elif number is not None:
            self.numbers.add(number)

    def _results(self) -> Iterator[tuple[_Done, bytes]]:
        with self.path.open("rb", buffering=_BUFFER_BYTES) as file:
            for number, line in enumerate(file, 1):
                try:
                    yield msgspec.json.decode(line, type=_Done), line
                except UNREADABLE:
                    raise ConfigError(
                        f"{self.path} holds something else than results in line {number}; name "
                        f"another file"
                    ) from None


def _write(file: int, data: bytes) -> None:
    """All of it; one call of the system unless the disk is full."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]
