"""The GGUF reader: what it returns, and one clear line for each way a file can be wrong."""

import struct
from pathlib import Path

import pytest
from tests.shared_data import shared_data
from tests.unit.weights.raw_gguf import RawGguf, array, key, string, strings, tensor, uint32

from kokuban.core.errors import ModelError
from kokuban.weights.gguf import GgufFile, StringArray
from kokuban.weights.quant_types import TensorType


def write(directory: Path, content: bytes) -> Path:
    path = directory / "model.gguf"
    path.write_bytes(content)
    return path


def read(directory: Path, raw: RawGguf) -> GgufFile:
    return GgufFile(write(directory, raw.build()))


@pytest.mark.parametrize("version", [2, 3])
def test_a_good_file_gives_its_tensors_with_dimensions_slowest_first(
    tmp_path: Path, version: int
) -> None:
    file = read(tmp_path, RawGguf(version=version))

    assert list(file.tensors) == ["a", "b"]
    assert file.tensors["a"].shape == (4, 8)
    assert file.tensors["a"].type is TensorType.F32
    assert file.tensors["b"].offset == file.data_offset + 128
    assert file.data_offset % 32 == 0


def test_every_kind_of_value_is_read(tmp_path: Path) -> None:
    keys = [
        key("u8", 0, b"\xff"),
        key("i8", 1, b"\xff"),
        key("u16", 2, struct.pack("<H", 65535)),
        key("i16", 3, struct.pack("<h", -2)),
        uint32("u32", 2**32 - 1),
        key("i32", 5, struct.pack("<i", -3)),
        key("f32", 6, struct.pack("<f", 0.5)),
        key("bool", 7, b"\x01"),
        key("text", 8, string("日本")),
        array("ints", 5, 3, struct.pack("<3i", 1, -2, 3)),
        array("floats", 6, 2, struct.pack("<2f", 0.25, -1)),
        strings("strings", ["a", "", "é"]),
        array("nothing", 8, 0, b""),
        key("u64", 10, struct.pack("<Q", 2**63)),
        key("i64", 11, struct.pack("<q", -(2**62))),
        key("f64", 12, struct.pack("<d", 1e300)),
    ]

    metadata = read(tmp_path, RawGguf(keys=keys)).metadata

    plain = {
        name: list(value) if isinstance(value, memoryview | StringArray) else value
        for name, value in metadata.items()
    }
    assert plain == {
        "u8": 255,
        "i8": -1,
        "u16": 65535,
        "i16": -2,
        "u32": 2**32 - 1,
        "i32": -3,
        "f32": 0.5,
        "bool": True,
        "text": "日本",
        "ints": [1, -2, 3],
        "floats": [0.25, -1.0],
        "strings": ["a", "", "é"],
        "nothing": [],
        "u64": 2**63,
        "i64": -(2**62),
        "f64": 1e300,
    }


def test_bytes_that_are_not_utf8_become_replacement_characters(tmp_path: Path) -> None:
    broken = array("strings", 8, 1, struct.pack("<Q", 2) + b"\xffa")

    assert list(read(tmp_path, RawGguf(keys=[broken])).metadata["strings"]) == ["\ufffda"]


def test_the_files_own_alignment_counts(tmp_path: Path) -> None:
    raw = RawGguf(keys=[uint32("general.alignment", 8)])
    raw.tensors = [tensor("a", (8,)), tensor("b", (8,), offset=40)]

    assert read(tmp_path, raw).tensors["b"].offset % 32 == 8


MALFORMED = {
    "wrong magic": (RawGguf(magic=b"GGML"), "is no GGUF file: it begins with b'GGML'"),
    "version 1": (RawGguf(version=1), "GGUF version 1 is not supported, only 2 and 3"),
    "version 99": (RawGguf(version=99), "GGUF version 99 is not supported"),
    "big-endian": (RawGguf(version=3 << 24), "it is a big-endian file"),
    "2^63 keys": (RawGguf(num_keys=2**63), "claims 9223372036854775808 metadata keys"),
    "2^60 tensors": (RawGguf(num_tensors=2**60), "claims 1152921504606846976 tensors"),
    "string of 2^63 bytes": (
        RawGguf(keys=[key("k", 8, struct.pack("<Q", 2**63))]),
        "the value of 'k' needs 9223372036854775808 bytes",
    ),
    "array of 2^60 numbers": (
        RawGguf(keys=[array("k", 4, 2**60, b"")]),
        "the value of 'k' needs 4611686018427387904 bytes",
    ),
    "array of 2^60 strings": (
        RawGguf(keys=[array("k", 8, 2**60, b"")]),
        "the value of 'k' claims 1152921504606846976 strings",
    ),
    "string in an array past the end": (
        RawGguf(keys=[array("k", 8, 2, struct.pack("<Q", 2**62))]),
        "a string of the value of 'k' reaches past the end of the file",
    ),
    "nested arrays": (
        RawGguf(keys=[array("k", 9, 1, struct.pack("<IQ", 9, 1) * 1000)]),
        "the value of 'k' is an array of arrays",
    ),
    "unknown value type": (RawGguf(keys=[key("k", 13, b"")]), "the unknown value type 13"),
    "unknown element type": (
        RawGguf(keys=[array("k", 77, 1, b"")]),
        "the unknown element type 77",
    ),
    "duplicate key": (RawGguf(keys=[uint32("k", 1)] * 2), "the metadata key 'k' occurs twice"),
    "empty key": (
        RawGguf(keys=[uint32("", 1)]),
        "the name of metadata key 0 at offset 24 has not 1 to 256",
    ),
    "key of 300 bytes": (RawGguf(keys=[uint32("k" * 300, 1)]), "has not 1 to 256 bytes"),
    "alignment 0": (RawGguf(keys=[uint32("general.alignment", 0)]), "general.alignment=0 is not"),
    "alignment 48": (
        RawGguf(keys=[uint32("general.alignment", 48)]),
        "alignment=48 is not a power",
    ),
    "a million dimensions": (
        RawGguf(tensors=[string("a") + struct.pack("<I", 1_000_000) + bytes(40)]),
        "the tensor 'a' has 1000000 dimensions, not 1 to 4",
    ),
    "no dimension": (RawGguf(tensors=[tensor("a", ()) + bytes(16)]), "has 0 dimensions"),
    "dimension 0": (RawGguf(tensors=[tensor("a", (8, 0))]), "has a dimension of 0 in [8, 0]"),
    "product that overflows": (
        RawGguf(tensors=[tensor("a", (2**42 + 1, 2**22))]),
        "needs 73786976294854983680 bytes",
    ),
    "offset past the end": (
        RawGguf(tensors=[tensor("a", (8, 4), offset=2**40)]),
        "the tensor 'a' of shape [8, 4] needs 128 bytes up to offset 1099511628032",
    ),
    "offset not aligned": (
        RawGguf(tensors=[tensor("a", (8,), offset=4)]),
        "lies at offset 4, no multiple of the alignment 32",
    ),
    "tensors that overlap": (
        RawGguf(tensors=[tensor("b", (8, 4), offset=32), tensor("a", (32,))]),
        "the tensors 'a' and 'b' overlap",
    ),
    "tensor twice": (RawGguf(tensors=[tensor("a", (8,))] * 2), "the tensor 'a' occurs twice"),
    "tensor without a name": (
        RawGguf(keys=[], tensors=[tensor("", (8,))]),
        "a tensor's name at offset 24 has not 1 to 256 bytes",
    ),
    "row of no whole blocks": (
        RawGguf(tensors=[tensor("a", (48, 2), type_id=2)]),
        "has rows of 48 elements, no multiple of the Q4_0 block of 32",
    ),
    "type that is not supported": (
        RawGguf(tensors=[tensor("blk.0.x", (256,), type_id=16)]),
        "the tensor 'blk.0.x' has type 16 (IQ2_XXS), which is not supported; supported are F32",
    ),
    "type that nobody knows": (
        RawGguf(tensors=[tensor("a", (256,), type_id=4000)]),
        "the tensor 'a' has type 4000 (unknown)",
    ),
}


@pytest.mark.parametrize(("raw", "problem"), MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_file_gives_one_line_that_names_it(
    tmp_path: Path, raw: RawGguf, problem: str
) -> None:
    """Keeps B79 out: docs/bugbank.md."""
    with pytest.raises(ModelError) as caught:
        read(tmp_path, raw)

    assert problem in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path / "model.gguf"))
    assert "\n" not in str(caught.value)


def test_a_file_cut_anywhere_is_an_error(tmp_path: Path) -> None:
    """Keeps B79 out: docs/bugbank.md."""
    keys = [strings("k", ["ab", "c"]), uint32("n", 1)]
    whole = RawGguf(keys=keys, tensors=[tensor("a", (2,))], data_bytes=8).build()
    for length in range(1, len(whole)):
        path = write(tmp_path, whole[:length])

        with pytest.raises(ModelError):
            GgufFile(path)


def test_a_file_cut_by_one_byte_names_the_tensor_and_the_sizes(tmp_path: Path) -> None:
    whole = RawGguf().build()

    with pytest.raises(
        ModelError, match=rf"'b' of shape \[32\].*up to offset {len(whole)}.*truncated"
    ):
        GgufFile(write(tmp_path, whole[:-1]))


def test_an_empty_and_an_absent_file_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="the file is empty"):
        GgufFile(write(tmp_path, b""))
    with pytest.raises(ModelError, match="cannot be read: No such file"):
        GgufFile(tmp_path / "absent.gguf")


def test_a_vocabulary_of_150_thousand_tokens_is_not_decoded_before_it_is_read() -> None:
    file = GgufFile(shared_data("tokenizers/ggml-vocab-qwen2.gguf"))
    tokens, types = (file.metadata[f"tokenizer.ggml.{key}"] for key in ("tokens", "token_type"))

    assert isinstance(tokens, StringArray)
    assert tokens._decoded is None
    assert len(tokens) == 151_936
    assert isinstance(types, memoryview)
    assert (tokens[0], tokens[151_643], tokens[-1]) == ("!", "<|endoftext|>", "[PAD151935]")
    assert types[0] == 1
