"""Reads the input of a batch, line by line."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from kokuban.core.errors import ConfigError
from kokuban.server.batch.lines import custom_id_of, digest_of
from kokuban.server.batch.sink import Sink

_BUFFER_BYTES = 2**20
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Source:
    """The input. `scan` reads it once, `lines` again."""

    path: Path
    max_line_bytes: int
    """Longer lines are not read."""

    def lines(self) -> Iterator[tuple[int, bytes | None]]:
        """Number and content of all lines that are not blank; None for one that is too long."""
        with _opened(self.path) as file:
            number = 0
            while line := file.readline(self.max_line_bytes + 1):
                number += 1
                if len(line) > self.max_line_bytes and not line.endswith(b"\n"):
                    _skip_line(file)
                    yield number, None
                    continue
                line = line.removeprefix(_BOM) if number == 1 else line
                if line := line.strip():
                    yield number, line

    def scan(self) -> "Scan":
        """Raises `ConfigError` when two lines have one custom_id."""
        first_lines: dict[bytes, int] = {}
        nameless: set[int] = set()
        for number, line in self.lines():
            custom_id = None if line is None else custom_id_of(line)
            if custom_id is None:
                nameless.add(number)
                continue
            first = first_lines.setdefault(digest_of(custom_id), number)
            if first != number:
                raise ConfigError(
                    f"{self.path}: the custom_id {custom_id[:64]!r} of line {number} is that of "
                    f"line {first} already; give each line an id of its own"
                )
        return Scan(frozenset(first_lines), frozenset(nameless))


@dataclass(frozen=True, slots=True)
class Scan:
    """What was seen of an input."""

    digests: frozenset[bytes]
    """Of its custom_ids."""

    nameless: frozenset[int]
    """Numbers of the lines without one."""

    @property
    def num_lines(self) -> int:
        return len(self.digests) + len(self.nameless)

    def num_left(self, sink: Sink) -> int:
        """Lines that have no result yet."""
        return len(self.digests - sink.digests) + len(self.nameless - sink.numbers)


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    try:
        if not path.is_file():
            raise ConfigError(f"{path} is no file; a batch is read twice, so it cannot be a pipe")
        with path.open("rb", buffering=_BUFFER_BYTES) as file:
            yield file
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error


def _skip_line(file: BinaryIO) -> None:
    while (rest := file.readline(_BUFFER_BYTES)) and not rest.endswith(b"\n"):
        pass
