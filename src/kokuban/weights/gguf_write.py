"""Writes GGUF version 3: what tests and tools need to make small models."""

import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from kokuban.weights.gguf import ARRAY, DEFAULT_ALIGNMENT, MAGIC, SCALARS, STRING
from kokuban.weights.mapped import WeightTensor

WriteValue = (
    str | bool | int | float | Sequence[str] | Sequence[bool] | Sequence[int] | Sequence[float]
)

_BOOL, _UINT32, _INT32, _FLOAT32, _INT64 = 7, 4, 5, 6, 11


def write_gguf(
    path: Path, metadata: Mapping[str, WriteValue], tensors: Iterable[WeightTensor]
) -> None:
    """Write a file that `GgufFile` reads back.

    Args:
        metadata: int becomes uint32 (int64 if it does not fit), float float32; the elements of a
            sequence are all of the first one's type, ints in it int32.
        tensors: raw bytes in the format of their type; the order is kept.
    """
    kept = list(tensors)
    header = bytearray(MAGIC + struct.pack("<IQQ", 3, len(kept), len(metadata)))
    for key, value in metadata.items():
        header += _string(key) + _value(value)
    offset = 0
    for tensor in kept:
        dims = tuple(reversed(tensor.shape))
        header += _string(tensor.name) + struct.pack("<I", len(dims))
        header += struct.pack(f"<{len(dims)}Q", *dims)
        header += struct.pack("<IQ", tensor.type, offset)
        offset += tensor.data.nbytes + _padding(tensor.data.nbytes)
    with path.open("wb") as file:
        file.write(header + bytes(_padding(len(header))))
        for tensor in kept:
            file.write(tensor.data.tobytes())
            file.write(bytes(_padding(tensor.data.nbytes)))


def _padding(num_bytes: int) -> int:
    return -num_bytes % DEFAULT_ALIGNMENT


def _string(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def _value(value: WriteValue) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", STRING) + _string(value)
    if isinstance(value, bool | int | float):
        type_id = _scalar_type(value)
        return struct.pack("<I" + SCALARS[type_id][1], type_id, value)
    return struct.pack("<I", ARRAY) + _array(value)


def _scalar_type(value: float) -> int:
    if isinstance(value, bool):
        return _BOOL
    if isinstance(value, int):
        return _UINT32 if 0 <= value < 2**32 else _INT64
    return _FLOAT32


def _array(values: Sequence[str] | Sequence[bool] | Sequence[int] | Sequence[float]) -> bytes:
    if not values or isinstance(values[0], str):
        strings = b"".join(_string(str(value)) for value in values)
        return struct.pack("<IQ", STRING, len(values)) + strings
    type_id = _scalar_type(values[0])
    if type_id == _UINT32:
        type_id = _INT32
    code = SCALARS[type_id][1]
    return struct.pack(f"<IQ{len(values)}{code}", type_id, len(values), *values)
