"""Reads safetensors files, one or several, through memory maps, trusting nothing in them.

    length of the header u64 · header, JSON: name -> dtype, shape, [begin, end) · data

Source: github.com/huggingface/safetensors, section "Format".
"""

import json
import math
from pathlib import Path
from typing import Any, TypeGuard

from kokuban.core.errors import ModelError
from kokuban.weights.fields import shown
from kokuban.weights.mapped import MappedFile, TensorInfo, overlap
from kokuban.weights.quant_types import TensorType

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
MAX_HEADER_BYTES = 100_000_000
"""The format's own limit."""

MAX_DIMENSIONS = 8

_LENGTH_BYTES = 8
_DTYPES = {"F32": TensorType.F32, "F16": TensorType.F16, "BF16": TensorType.BF16}


def read_safetensors(directory: Path) -> dict[str, TensorInfo]:
    """All tensors of a model directory under the names in its files.

    Raises:
        ModelError: a file is missing, truncated or contradicts itself or the index.
    """
    index = directory / INDEX_FILE
    if index.exists():
        return _read_shards(index)
    single = directory / SINGLE_FILE
    if single.exists():
        return read_safetensors_file(single)
    raise ModelError(f"{directory}: holds neither {SINGLE_FILE} nor {INDEX_FILE}")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a model directory.

    Raises:
        ModelError: the file is missing, or is no JSON object.
    """
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path}: is no valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path}: is no JSON object")
    return value


def read_safetensors_file(path: Path) -> dict[str, TensorInfo]:
    """The tensors of one file.

    Raises:
        ModelError: the file is truncated or contradicts itself.
    """
    file = MappedFile(path)
    header, data_offset = _read_header(file)
    tensors = {
        name: _place_tensor(file, name, entry, data_offset)
        for name, entry in header.items()
        if name != "__metadata__"
    }
    if pair := overlap(tensors.values()):
        raise ModelError(
            f"{path}: the tensors {shown(pair[0].name)} and {shown(pair[1].name)} overlap"
        )
    return tensors


def _read_shards(index: Path) -> dict[str, TensorInfo]:
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(f"{index}: has no weight_map of tensor names to files")
    tensors: dict[str, TensorInfo] = {}
    for shard in sorted({str(shard) for shard in weight_map.values()}):
        if Path(shard).name != shard:
            raise ModelError(f"{index}: names the file {shown(shard)} outside the model's folder")
        path = index.parent / shard
        if not path.exists():
            raise ModelError(f"{index}: names the file {shown(shard)}, which is missing")
        for name, info in read_safetensors_file(path).items():
            if name in tensors:
                other = tensors[name].file.path.name
                raise ModelError(f"{path}: the tensor {shown(name)} is also in {other}")
            tensors[name] = info
    for name, shard in weight_map.items():
        if name not in tensors or tensors[name].file.path.name != shard:
            raise ModelError(f"{index}: the tensor {shown(name)} is not in the file {shown(shard)}")
    return tensors


def _read_header(file: MappedFile) -> tuple[dict[str, Any], int]:
    def fail(problem: str) -> ModelError:
        return ModelError(f"{file.path}: {problem}")

    length = int.from_bytes(file.buffer[:_LENGTH_BYTES], "little")
    left = file.num_bytes - _LENGTH_BYTES
    if left < 2 or not 2 <= length <= min(left, MAX_HEADER_BYTES):
        raise fail(
            f"claims a header of {length} bytes; {max(left, 0)} are left of the file and at most "
            f"{MAX_HEADER_BYTES} are read; it is truncated or no safetensors file"
        )
    data_offset = _LENGTH_BYTES + length
    try:
        header = json.loads(
            file.buffer[_LENGTH_BYTES:data_offset], object_pairs_hook=_without_duplicates
        )
    except (ValueError, RecursionError) as error:
        raise fail(f"its header is no valid JSON: {error}") from error
    if not isinstance(header, dict):
        raise fail("its header is no JSON object")
    return header, data_offset


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the name {shown(twice)} occurs twice")
    return result


def _place_tensor(file: MappedFile, name: str, entry: Any, data_offset: int) -> TensorInfo:
    def fail(problem: str) -> ModelError:
        return ModelError(f"{file.path}: the tensor {shown(name)} {problem}")

    tensor_type, shape, begin, end = _parse_entry(entry, fail)
    num_bytes = tensor_type.num_bytes(math.prod(shape))
    if end - begin != num_bytes:
        raise fail(
            f"of shape {shown(list(shape))} needs {num_bytes} bytes as {tensor_type.name}, but its "
            f"offsets {begin} to {end} hold {end - begin}"
        )
    missing = data_offset + end - file.num_bytes
    if missing > 0:
        raise fail(f"ends {missing} bytes after the end of the file, which is truncated")
    return TensorInfo(name, tensor_type, shape, data_offset + begin, num_bytes, file)


def _parse_entry(entry: Any, fail: Any) -> tuple[TensorType, tuple[int, ...], int, int]:
    if not isinstance(entry, dict):
        raise fail("has no entry with dtype, shape and data_offsets")
    dtype, shape, offsets = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise fail(f"has the dtype {shown(dtype)}; supported are {', '.join(_DTYPES)}")
    if not _is_naturals(shape) or not 1 <= len(shape) <= MAX_DIMENSIONS or 0 in shape:
        raise fail(f"has the shape {shown(shape)}, not 1 to {MAX_DIMENSIONS} sizes above 0")
    if not _is_naturals(offsets) or len(offsets) != 2:
        raise fail(f"has the data_offsets {shown(offsets)}, not two numbers")
    return _DTYPES[dtype], tuple(shape), offsets[0], offsets[1]


def _is_naturals(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(
        isinstance(element, int) and not isinstance(element, bool) and element >= 0
        for element in value
    )
