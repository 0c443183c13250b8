"""Write GGUF version 3 files, for tests. Source: docs/gguf.md of ggml describes the format."""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ALIGNMENT = 32
VERSION = 3

MetadataValue = bool | int | float | str | Sequence[str] | Sequence[int] | Sequence[float]

_UINT32, _INT32, _FLOAT32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor as the file holds it."""

    type_id: int
    """Its `ggml_type`: 0 is F32."""

    shape: tuple[int, ...]
    """As in NumPy, [n, k]; the file lists them the other way round."""

    data: bytes


def write_gguf(
    path: Path, metadata: Mapping[str, MetadataValue], tensors: Mapping[str, GgufTensor]
) -> Path:
    """Write the whole file. Ints become uint32 (int32 in lists), floats float32."""
    head = struct.pack("<4sIQQ", b"GGUF", VERSION, len(tensors), len(metadata))
    for key, value in metadata.items():
        head += _string(key) + _typed(value)
    offset = 0
    for name, tensor in tensors.items():
        dims = tensor.shape[::-1]
        head += _string(name) + struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
        head += struct.pack("<IQ", tensor.type_id, offset)
        offset += _padded(len(tensor.data))
    with path.open("wb") as file:
        file.write(head.ljust(_padded(len(head)), b"\0"))
        for tensor in tensors.values():
            file.write(tensor.data.ljust(_padded(len(tensor.data)), b"\0"))
    return path


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _typed(value: MetadataValue) -> bytes:
    type_id, raw = _encode(value)
    return struct.pack("<I", type_id) + raw


def _encode(value: MetadataValue) -> tuple[int, bytes]:
    match value:
        case bool():
            return _BOOL, struct.pack("<?", value)
        case int():
            return _UINT32, struct.pack("<I", value)
        case float():
            return _FLOAT32, struct.pack("<f", value)
        case str():
            return _STRING, _string(value)
        case _:
            return _ARRAY, _encode_list(value)


def _encode_list(values: Sequence[str] | Sequence[int] | Sequence[float]) -> bytes:
    count = len(values)
    if all(isinstance(value, str) for value in values):
        return struct.pack("<IQ", _STRING, count) + b"".join(_string(str(v)) for v in values)
    if all(isinstance(value, int) for value in values):
        return struct.pack(f"<IQ{count}i", _INT32, count, *values)
    return struct.pack(f"<IQ{count}f", _FLOAT32, count, *values)
