"""Reads GGUF files (versions 2 and 3) through a memory map, trusting nothing in them.

    magic "GGUF" · version u32 · number of tensors u64 · number of keys u64
    keys      name, type u32, value
    tensors   name, number of dimensions u32, dimensions u64 (fastest first), type u32, offset u64
    padding to `general.alignment`, then the data section that the offsets count from

Arrays stay in the map until somebody asks for their elements: opening a file with a vocabulary of
150,000 tokens costs one pass over the string lengths and makes no string. Every size is compared
with what is left of the file before it is used, so a wrong file gives an error, never an
allocation.

Source: ggml's docs/gguf.md.
"""

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

from kokuban.core.errors import ModelError
from kokuban.kernels.strings import read_strings, skip_strings
from kokuban.weights.mapped import MappedFile, TensorInfo, overlap
from kokuban.weights.quant_types import TensorType, supported_types, type_name

MetadataValue = str | int | float | bool | Sequence[str] | Sequence[int] | Sequence[float]

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMENSIONS = 4
MAX_NAME_BYTES = 256
"""Of keys and tensors; ggml itself stops at 64 for tensors."""

MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 18
MAX_STRINGS = 1 << 23
"""Strings in one array; the largest vocabularies in use have 2 ** 18 tokens."""

STRING, ARRAY = 8, 9
SCALARS = {
    0: ("uint8", "B"),
    1: ("int8", "b"),
    2: ("uint16", "H"),
    3: ("int16", "h"),
    4: ("uint32", "I"),
    5: ("int32", "i"),
    6: ("float32", "f"),
    7: ("bool", "?"),
    10: ("uint64", "Q"),
    11: ("int64", "q"),
    12: ("float64", "d"),
}
"""Value types of one fixed-size number: name, and code for `struct`."""

_MIN_KEY_BYTES = 8 + 1 + 4 + 1
_MIN_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8


class StringArray(Sequence[str]):
    """An array of strings in the map, decoded when first asked for.

    Bytes that are not UTF-8 decode to U+FFFD.
    """

    def __init__(self, buffer: Any, start: int, count: int) -> None:
        self._buffer = buffer
        self._start = start
        self._count = count
        self._decoded: list[str] | None = None

    def _strings(self) -> list[str]:
        if self._decoded is None:
            self._decoded = read_strings(self._buffer, self._start, self._count)
        return self._decoded

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        return self._strings()[index]

    def __iter__(self) -> Iterator[str]:
        return iter(self._strings())


class GgufFile:
    """One GGUF file. Metadata and tensor places are checked when it is made.

    Raises:
        ModelError: the file is unreadable, malformed, or uses what Kokuban does not support.
    """

    metadata: Mapping[str, MetadataValue]
    """Values under their keys. Arrays are typed memoryviews of numbers, or a `StringArray`."""

    tensors: Mapping[str, TensorInfo]
    data_offset: int
    """Where the header ends and the data section begins, in bytes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = MappedFile(path)
        cursor = _Cursor(self.file)
        self.version, num_tensors, num_keys = _read_header(cursor)
        self.metadata = _read_metadata(cursor, num_keys)
        alignment = _alignment(cursor, self.metadata)
        entries = [_read_tensor_entry(cursor) for _ in range(num_tensors)]
        self.data_offset = cursor.position + -cursor.position % alignment
        self.tensors = _place_tensors(self.file, entries, self.data_offset, alignment)


class _Cursor:
    """A position in the header. Reading past the end of the file is a `ModelError`."""

    def __init__(self, file: MappedFile) -> None:
        self.buffer = file.buffer
        self.path = file.path
        self.position = 0

    @property
    def remaining(self) -> int:
        return len(self.buffer) - self.position

    def fail(self, message: str) -> ModelError:
        return ModelError(f"{self.path}: {message}")

    def need(self, num_bytes: int, what: str) -> int:
        """Move past `num_bytes` and return where they start."""
        if num_bytes > self.remaining:
            raise self.fail(
                f"{what} needs {num_bytes} bytes at offset {self.position}, but the file ends "
                f"after {self.remaining}; it is truncated or damaged"
            )
        start = self.position
        self.position += num_bytes
        return start

    def number(self, code: str, what: str) -> Any:
        start = self.need(struct.calcsize("<" + code), what)
        return struct.unpack_from("<" + code, self.buffer, start)[0]

    def text(self, what: str) -> str:
        length = self.number("Q", f"the length of {what}")
        start = self.need(length, what)
        return self.buffer[start : start + length].decode("utf-8", "replace")

    def name(self, what: str) -> str:
        """A string short enough to be shown in a message; never empty."""
        start = self.position
        name = self.text(what)
        if not 1 <= self.position - start - 8 <= MAX_NAME_BYTES:
            raise self.fail(f"{what} at offset {start} has not 1 to {MAX_NAME_BYTES} bytes")
        return name

    def string_array(self, count: int, what: str) -> StringArray:
        """Step over the strings."""
        if count > min(MAX_STRINGS, self.remaining // 8):
            raise self.fail(
                f"{what} claims {count} strings; at most {MAX_STRINGS} are read and "
                f"{self.remaining} bytes are left"
            )
        start = self.position
        try:
            self.position = skip_strings(self.buffer, start, count)
        except IndexError:
            raise self.fail(f"a string of {what} reaches past the end of the file") from None
        return StringArray(self.buffer, start, count)


def _read_header(cursor: _Cursor) -> tuple[int, int, int]:
    start = cursor.need(len(MAGIC), "the magic number")
    magic = cursor.buffer[start : start + len(MAGIC)]
    if magic != MAGIC:
        raise cursor.fail(f"is no GGUF file: it begins with {magic!r}, not {MAGIC!r}")
    version = cursor.number("I", "the version")
    if version not in VERSIONS:
        hint = "; it is a big-endian file" if version >> 24 in VERSIONS else ""
        raise cursor.fail(f"GGUF version {version} is not supported, only 2 and 3{hint}")
    num_tensors = cursor.number("Q", "the number of tensors")
    num_keys = cursor.number("Q", "the number of keys")
    for count, limit, least, what in (
        (num_tensors, MAX_TENSORS, _MIN_TENSOR_BYTES, "tensors"),
        (num_keys, MAX_KEYS, _MIN_KEY_BYTES, "metadata keys"),
    ):
        if count > min(limit, cursor.remaining // least):
            raise cursor.fail(
                f"claims {count} {what}; at most {limit} are read and "
                f"{cursor.remaining} bytes are left"
            )
    return version, num_tensors, num_keys


def _read_metadata(cursor: _Cursor, num_keys: int) -> dict[str, MetadataValue]:
    metadata: dict[str, MetadataValue] = {}
    for index in range(num_keys):
        key = cursor.name(f"the name of metadata key {index}")
        if key in metadata:
            raise cursor.fail(f"the metadata key {key!r} occurs twice")
        metadata[key] = _read_value(cursor, key)
    return metadata


def _read_value(cursor: _Cursor, key: str) -> MetadataValue:
    what = f"the value of {key!r}"
    type_id = cursor.number("I", f"the type of {key!r}")
    if type_id in SCALARS:
        value: MetadataValue = cursor.number(SCALARS[type_id][1], what)
        return value
    if type_id == STRING:
        return cursor.text(what)
    if type_id == ARRAY:
        return _read_array(cursor, what)
    raise cursor.fail(f"{what} has the unknown value type {type_id}")


def _read_array(cursor: _Cursor, what: str) -> MetadataValue:
    type_id = cursor.number("I", f"the element type of {what}")
    count = cursor.number("Q", f"the length of {what}")
    if type_id == STRING:
        return cursor.string_array(count, what)
    if type_id == ARRAY:
        raise cursor.fail(f"{what} is an array of arrays, which is not supported")
    if type_id not in SCALARS:
        raise cursor.fail(f"{what} has the unknown element type {type_id}")
    code = SCALARS[type_id][1]
    start = cursor.need(count * struct.calcsize("<" + code), what)
    raw = memoryview(cursor.buffer)[start : cursor.position]
    numbers: MetadataValue = raw.cast(code)  # type: ignore[call-overload]
    return numbers


def _alignment(cursor: _Cursor, metadata: Mapping[str, MetadataValue]) -> int:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise cursor.fail(f"general.alignment={alignment!r} is not a power of two")
    return alignment


class _Entry:
    """A tensor's line in the header, before its place is checked."""

    __slots__ = ("dims", "name", "offset", "type_id")

    def __init__(self, name: str, dims: tuple[int, ...], type_id: int, offset: int) -> None:
        self.name, self.dims, self.type_id, self.offset = name, dims, type_id, offset


def _read_tensor_entry(cursor: _Cursor) -> _Entry:
    name = cursor.name("a tensor's name")
    what = f"the entry of tensor {name!r}"
    num_dims = cursor.number("I", what)
    if not 1 <= num_dims <= MAX_DIMENSIONS:
        raise cursor.fail(
            f"the tensor {name!r} has {num_dims} dimensions, not 1 to {MAX_DIMENSIONS}"
        )
    dims = tuple(cursor.number("Q", what) for _ in range(num_dims))
    return _Entry(name, dims, cursor.number("I", what), cursor.number("Q", what))


def _place_tensors(
    file: MappedFile, entries: Sequence[_Entry], data_offset: int, alignment: int
) -> dict[str, TensorInfo]:
    tensors: dict[str, TensorInfo] = {}
    for entry in entries:
        if entry.name in tensors:
            raise ModelError(f"{file.path}: the tensor {entry.name!r} occurs twice")
        tensors[entry.name] = _place_tensor(file, entry, data_offset, alignment)
    if pair := overlap(tensors.values()):
        raise ModelError(
            f"{file.path}: the tensors {pair[0].name!r} and {pair[1].name!r} overlap at "
            f"offset {pair[1].offset}"
        )
    return tensors


def _place_tensor(file: MappedFile, entry: _Entry, data_offset: int, alignment: int) -> TensorInfo:
    def fail(problem: str) -> ModelError:
        return ModelError(f"{file.path}: the tensor {entry.name!r} {problem}")

    if entry.type_id not in TensorType.__members__.values():
        raise fail(
            f"has type {entry.type_id} ({type_name(entry.type_id)}), which is not supported; "
            f"supported are {supported_types()}"
        )
    tensor_type = TensorType(entry.type_id)
    if 0 in entry.dims:
        raise fail(f"has a dimension of 0 in {list(entry.dims)}")
    if entry.dims[0] % tensor_type.block_elements:
        raise fail(
            f"has rows of {entry.dims[0]} elements, no multiple of the {tensor_type.name} block "
            f"of {tensor_type.block_elements}"
        )
    if entry.offset % alignment:
        raise fail(f"lies at offset {entry.offset}, no multiple of the alignment {alignment}")
    num_bytes = tensor_type.num_bytes(math.prod(entry.dims))
    end = data_offset + entry.offset + num_bytes
    if end > file.num_bytes:
        raise fail(
            f"of shape {list(entry.dims)} needs {num_bytes} bytes up to offset {end}, but the file "
            f"has {file.num_bytes}; it is truncated or damaged"
        )
    shape = tuple(reversed(entry.dims))
    return TensorInfo(entry.name, tensor_type, shape, data_offset + entry.offset, num_bytes, file)
