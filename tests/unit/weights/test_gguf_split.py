"""GGUF models in several files."""

from pathlib import Path

import pytest
from tests.unit.weights.small_models import GGUF_LLAMA, GGUF_TOKENIZER, f32

from kokuban.core.errors import ModelError
from kokuban.weights.gguf_write import write_gguf
from kokuban.weights.source import open_source

SPLIT = {"split.count": 2, "split.tensors.count": 2}


def write_parts(directory: Path, *, second: str = "y", declared: int = 2) -> Path:
    first = directory / "m-00001-of-00002.gguf"
    settings = {**GGUF_LLAMA, **GGUF_TOKENIZER, **SPLIT, "split.tensors.count": declared}
    write_gguf(first, settings, [f32("x", 8)])
    write_gguf(directory / "m-00002-of-00002.gguf", {"split.count": 2}, [f32(second, 4)])
    return first


def test_all_parts_are_one_model(tmp_path: Path) -> None:
    source = open_source(write_parts(tmp_path))

    assert source.names() == ("x", "y")
    assert source.tensor("y").data.view("<f4").tolist() == [0, 1, 2, 3]


def test_a_directory_of_parts_opens_at_the_first(tmp_path: Path) -> None:
    first = write_parts(tmp_path)

    assert open_source(tmp_path).path == first


def test_the_second_part_alone_asks_for_the_first(tmp_path: Path) -> None:
    write_parts(tmp_path)

    with pytest.raises(ModelError, match=r"is one of 2 parts; give the first, .*-00001-of-00002"):
        open_source(tmp_path / "m-00002-of-00002.gguf")


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    first = write_parts(tmp_path)
    (tmp_path / "m-00002-of-00002.gguf").unlink()

    with pytest.raises(ModelError, match=r"m-00002-of-00002\.gguf: cannot be read"):
        open_source(first)


def test_a_tensor_in_two_parts_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="the tensor 'x' is also in another part"):
        open_source(write_parts(tmp_path, second="x"))


def test_parts_that_hold_too_few_tensors_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="the 2 parts hold 2 tensors, not 3"):
        open_source(write_parts(tmp_path, declared=3))
