"""Strings that lie end to end in a file, each behind its length as a little-endian uint64.

A vocabulary has 50,000 to 260,000 of them and its merges as many more: walking them in Python was
a tenth of the time to start a small model.
"""

from typing import TYPE_CHECKING

from kokuban import _native

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


def skip_strings(buffer: "ReadableBuffer", start: int, count: int) -> int:
    """Where `count` strings that begin at `start` end, in bytes.

    Raises:
        IndexError: one reaches past the end of the buffer.
    """
    return int(_native.skip_strings(buffer, start, count))


def read_strings(buffer: "ReadableBuffer", start: int, count: int) -> list[str]:
    """Those strings; bytes that are not UTF-8 decode to U+FFFD.

    Raises:
        IndexError: one reaches past the end of the buffer.
    """
    strings: list[str] = _native.read_strings(buffer, start, count)
    return strings
