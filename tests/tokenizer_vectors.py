"""Reads vocabularies (GGUF metadata) and their reference vectors, independently of the product."""

import functools
import mmap
import struct
from pathlib import Path
from typing import Any

from tests.shared_data import shared_data

SEPARATOR = "\n__ggml_vocab_test__\n"

_SCALARS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
_STRING, _ARRAY = 8, 9


class _Reader:
    """A cursor over the metadata part of a GGUF file (version 2 or 3, little-endian)."""

    def __init__(self, data: bytes | mmap.mmap) -> None:
        self._data = data
        self._at = 0

    def scalar(self, code: str) -> Any:
        value = struct.unpack_from("<" + code, self._data, self._at)[0]
        self._at += struct.calcsize("<" + code)
        return value

    def string(self) -> str:
        length = self.scalar("Q")
        self._at += length
        return self._data[self._at - length : self._at].decode("utf-8", errors="replace")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            return self.scalar(_SCALARS[kind])
        item, length = self.scalar("I"), self.scalar("Q")
        if item in (_STRING, _ARRAY):
            return [self.value(item) for _ in range(length)]
        values = struct.unpack_from(f"<{length}{_SCALARS[item]}", self._data, self._at)
        self._at += length * struct.calcsize("<" + _SCALARS[item])
        return list(values)


def read_metadata(path: Path) -> dict[str, Any]:
    """All key-value pairs of a GGUF file."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        reader = _Reader(data)
        assert reader.scalar("I") == 0x46554747
        reader.scalar("I")
        reader.scalar("Q")
        return {
            reader.string(): reader.value(reader.scalar("I")) for _ in range(reader.scalar("Q"))
        }


@functools.cache
def vocabulary(family: str) -> dict[str, Any]:
    """Metadata of one shared vocabulary, such as "llama-bpe"."""
    return read_metadata(shared_data(f"tokenizers/ggml-vocab-{family}.gguf"))


@functools.cache
def vectors(family: str) -> list[tuple[str, list[int]]]:
    """Texts and their ids, without special tokens."""
    base = shared_data(f"tokenizers/ggml-vocab-{family}.gguf")
    # newline="": some texts hold carriage returns.
    with base.with_suffix(".gguf.inp").open(encoding="utf-8", newline="") as file:
        texts = file.read().split(SEPARATOR)
    lines = base.with_suffix(".gguf.out").read_text().split("\n")
    assert len(texts) == len(lines)
    return [
        (text, [int(word) for word in line.split()])
        for text, line in zip(texts, lines, strict=True)
    ]
