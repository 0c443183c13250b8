"""Strings behind their lengths, as GGUF files hold them: read, stepped over, and cut off."""

import mmap
import struct
from pathlib import Path

import pytest

from kokuban.kernels.strings import read_strings, skip_strings


def packed(*strings: bytes) -> bytes:
    return b"".join(struct.pack("<Q", len(string)) + string for string in strings)


TEXTS = ["", "a", "é", "日本", "𝄞", "\0", "a b"]
BYTES = b"<<" + packed(*(text.encode() for text in TEXTS)) + b">>"


def test_they_are_read_from_where_they_begin_and_no_further() -> None:
    assert read_strings(BYTES, 2, len(TEXTS)) == TEXTS
    assert skip_strings(BYTES, 2, len(TEXTS)) == len(BYTES) - 2
    assert (read_strings(BYTES, 2, 2), skip_strings(BYTES, 2, 2)) == (["", "a"], 2 + 8 + 9)


def test_none_of_them_is_nothing_wherever_it_stands() -> None:
    assert read_strings(b"", 0, 0) == []
    assert skip_strings(b"ab", 2, 0) == 2


@pytest.mark.parametrize("kind", [bytearray, memoryview])
def test_every_kind_of_bytes_is_read_in_place(kind: type) -> None:
    assert read_strings(kind(BYTES), 2, len(TEXTS)) == TEXTS


def test_a_map_of_a_file_is_read_and_can_be_closed_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "strings"
    path.write_bytes(BYTES)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert read_strings(mapped, 2, len(TEXTS)) == TEXTS
        with pytest.raises(IndexError):
            read_strings(mapped, 2, len(TEXTS) + 1)


def test_bytes_that_are_no_utf_8_become_replacement_characters() -> None:
    assert read_strings(packed(b"\xffa", b"\xe6\x97", b"\xed\xa0\x80"), 0, 3) == [
        b"\xffa".decode("utf-8", "replace"),
        b"\xe6\x97".decode("utf-8", "replace"),
        b"\xed\xa0\x80".decode("utf-8", "replace"),
    ]


@pytest.mark.parametrize(
    ("data", "start"),
    [
        (packed(b"abc")[:-1], 0),
        (packed(b"abc")[:7], 0),
        (packed(b"abc"), 12),
        (struct.pack("<Q", 2**64 - 1) + b"abc", 0),
        (struct.pack("<Q", 2**63) + b"abc", 0),
        (b"", 0),
    ],
)
def test_one_that_reaches_past_the_end_is_an_error(data: bytes, start: int) -> None:
    for take in (read_strings, skip_strings):
        with pytest.raises(IndexError, match="past the end"):
            take(data, start, 1)


def test_what_holds_no_bytes_is_refused() -> None:
    with pytest.raises(TypeError):
        read_strings("text", 0, 1)  # type: ignore[arg-type]
