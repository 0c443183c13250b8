"""The safetensors reader: one file, shards, and one clear line for each way they can be wrong."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.weights.small_models import safetensors_bytes

from kokuban.core.errors import ModelError
from kokuban.weights.quant_types import TensorType
from kokuban.weights.safetensors import read_safetensors, read_safetensors_file

A = np.arange(6, dtype="<f4").reshape(2, 3)
B = np.arange(4, dtype="<f4")


def write_shards(directory: Path, weight_map: dict[str, str]) -> None:
    (directory / "one.safetensors").write_bytes(safetensors_bytes({"a": A}))
    (directory / "two.safetensors").write_bytes(safetensors_bytes({"b": B}))
    index = json.dumps({"weight_map": weight_map})
    (directory / "model.safetensors.index.json").write_text(index)


def test_one_file_gives_its_tensors(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(safetensors_bytes({"a": A, "b": B}))

    tensors = read_safetensors(tmp_path)

    info = tensors["a"]
    assert list(tensors) == ["a", "b"]
    assert (info.type, info.shape, info.num_bytes) == (TensorType.F32, (2, 3), 24)
    assert info.file.view(info.offset, 24).view("<f4").tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_sixteen_bit_words_are_kept_as_they_are(tmp_path: Path, dtype: str) -> None:
    entry = {"dtype": dtype, "shape": [4], "data_offsets": [0, 8]}
    path = tmp_path / "model.safetensors"
    path.write_bytes(safetensors_bytes({"a": np.ones(2)}, {"a": entry}))

    info = read_safetensors_file(path)["a"]

    assert info.type.name == dtype
    assert info.num_bytes == 8


def test_shards_are_joined_by_the_index(tmp_path: Path) -> None:
    write_shards(tmp_path, {"a": "one.safetensors", "b": "two.safetensors"})

    tensors = read_safetensors(tmp_path)

    assert tensors["a"].file.path.name == "one.safetensors"
    assert tensors["b"].file.path.name == "two.safetensors"


def test_a_shard_cut_short_names_the_file_and_the_missing_bytes(tmp_path: Path) -> None:
    """Keeps B80 out: docs/bugbank.md."""
    write_shards(tmp_path, {"a": "one.safetensors", "b": "two.safetensors"})
    shard = tmp_path / "two.safetensors"
    shard.write_bytes(shard.read_bytes()[:-5])

    with pytest.raises(ModelError, match=r"two\.safetensors: the tensor 'b' ends 5 bytes after"):
        read_safetensors(tmp_path)


SHARD_FAULTS = {
    "missing shard": (
        {"a": "one.safetensors", "b": "absent.safetensors"},
        "'absent.safetensors', which is missing",
    ),
    "tensor in another shard": (
        {"a": "two.safetensors", "b": "one.safetensors"},
        "the tensor 'a' is not in the file 'two.safetensors'",
    ),
    "tensor in no shard": ({"a": "one.safetensors", "c": "one.safetensors"}, "'c' is not in"),
    "path outside the folder": ({"a": "../one.safetensors"}, "outside the model's folder"),
    "no map": ({}, "has no weight_map"),
}


@pytest.mark.parametrize(("weight_map", "problem"), SHARD_FAULTS.values(), ids=SHARD_FAULTS)
def test_an_index_that_the_files_do_not_match_is_an_error(
    tmp_path: Path, weight_map: dict[str, str], problem: str
) -> None:
    """Keeps B80 out: docs/bugbank.md."""
    write_shards(tmp_path, weight_map)

    with pytest.raises(ModelError) as caught:
        read_safetensors(tmp_path)

    assert problem in str(caught.value)


def test_a_tensor_in_two_shards_is_an_error(tmp_path: Path) -> None:
    write_shards(tmp_path, {"a": "one.safetensors", "b": "two.safetensors"})
    (tmp_path / "two.safetensors").write_bytes(safetensors_bytes({"a": A, "b": B}))

    with pytest.raises(ModelError, match=r"two\.safetensors: the tensor 'a' is also in one\.safe"):
        read_safetensors(tmp_path)


def entry(dtype: Any = "F32", shape: Any = (2, 3), offsets: Any = (0, 24)) -> bytes:
    return safetensors_bytes(
        {"a": A, "b": B}, {"a": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}
    )


FAULTS = {
    "empty": (b"", "the file is empty"),
    "seven bytes": (b"1234567", "is truncated or no safetensors file"),
    "header of 2^40 bytes": (struct.pack("<Q", 2**40) + b"{}", "claims a header of 1099511627776"),
    "header that is no JSON": (struct.pack("<Q", 4) + b"{]{]", "its header is no valid JSON"),
    "header nested deep": (struct.pack("<Q", 50_000) + b"[" * 50_000, "is no valid JSON"),
    "header that is a list": (struct.pack("<Q", 2) + b"[]", "its header is no JSON object"),
    "name twice": (struct.pack("<Q", 13) + b'{"a":1,"a":2}', "the name 'a' occurs twice"),
    "entry that is a number": (safetensors_bytes({}, {"a": 1}), "'a' has no entry with dtype"),
    "unknown dtype": (entry(dtype="F8_E4M3"), "'a' has the dtype 'F8_E4M3'; supported are F32"),
    "dtype that is a list": (entry(dtype=["F32"]), "'a' has the dtype ['F32']; supported are F32"),
    "dtype of another size": (entry(dtype="BF16"), "needs 12 bytes as BF16, but its offsets 0 to"),
    "negative size": (entry(shape=[-2, -3]), "the shape [-2, -3], not 1 to 8 sizes above 0"),
    "size 0": (entry(shape=[0, 3]), "the shape [0, 3]"),
    "shape of 2^62": (entry(shape=[2**62, 2**62]), "needs 85070591730234615865843651857942052864"),
    "one offset": (entry(offsets=[0]), "the data_offsets [0], not two numbers"),
    "offsets backwards": (entry(offsets=[24, 0]), "its offsets 24 to 0 hold -24"),
    "offsets past the end": (entry(offsets=[100, 124]), "ends 84 bytes after the end of the file"),
    "overlapping offsets": (entry(offsets=[8, 32]), "the tensors 'a' and 'b' overlap"),
}


@pytest.mark.parametrize(("content", "problem"), FAULTS.values(), ids=FAULTS)
def test_a_malformed_file_gives_one_line_that_names_it(
    tmp_path: Path, content: bytes, problem: str
) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)

    with pytest.raises(ModelError) as caught:
        read_safetensors(tmp_path)

    assert problem in str(caught.value)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_a_directory_without_weights_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"holds neither model\.safetensors nor"):
        read_safetensors(tmp_path)
