"""One face for GGUF files and directories: tensors, checks, digest."""

import json
from pathlib import Path

import numpy as np
import pytest
from tests.unit.weights.small_models import (
    f32,
    safetensors_bytes,
    small_directory,
    small_gguf,
)

from kokuban.core.errors import ModelError
from kokuban.weights.source import GgufSource, HfSource, check_tensors, open_source

EMBEDDING = {"token_embd.weight": (10, 48)}


def test_a_gguf_tensor_is_a_view_of_the_file_in_row_major_shape(tmp_path: Path) -> None:
    source = open_source(small_gguf(tmp_path, None, f32("x", 3, 8)))

    tensor = source.tensor("x")

    assert isinstance(source, GgufSource)
    assert source.names() == ("token_embd.weight", "x")
    assert tensor.shape == (3, 8)
    assert tensor.data.view("<f4").tolist() == list(range(24))
    assert not tensor.data.flags.owndata
    assert not tensor.data.flags.writeable


def test_a_directory_gives_the_same_names(tmp_path: Path) -> None:
    source = open_source(small_directory(tmp_path))

    assert isinstance(source, HfSource)
    assert source.names() == ("token_embd.weight", "output_norm.weight")
    assert [info.name for info in source.infos()] == list(source.names())
    assert source.tensor("output_norm.weight").data.view("<f4").tolist() == [1.0] * 48


def test_a_released_tensor_can_be_read_again(tmp_path: Path) -> None:
    source = open_source(small_gguf(tmp_path, None, f32("x", 3, 8)))
    before = source.tensor("x").data.copy()

    source.release("x")

    np.testing.assert_array_equal(source.tensor("x").data, before)


def test_a_tensor_that_is_not_there_is_named(tmp_path: Path) -> None:
    source = open_source(small_gguf(tmp_path))

    with pytest.raises(ModelError, match=r"tiny\.gguf: the tensor 'x' is missing"):
        source.tensor("x")


def test_a_directory_with_one_gguf_file_is_that_file(tmp_path: Path) -> None:
    path = small_gguf(tmp_path)

    assert open_source(tmp_path).path == path


def test_a_directory_with_two_gguf_files_asks_for_one(tmp_path: Path) -> None:
    path = small_gguf(tmp_path)
    path.with_name("other.gguf").write_bytes(path.read_bytes())

    with pytest.raises(ModelError, match=r"give one of them: other\.gguf, tiny\.gguf"):
        open_source(tmp_path)


def test_nothing_at_the_path_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="there is no such file or directory"):
        open_source(tmp_path / "absent")
    with pytest.raises(ModelError, match=r"config\.json: cannot be read: No such file"):
        open_source(tmp_path)


def test_two_tensors_of_one_meaning_are_an_error(tmp_path: Path) -> None:
    small_directory(tmp_path)
    names = ("model.norm.weight", "language_model.model.norm.weight")
    (tmp_path / "model.safetensors").write_bytes(
        safetensors_bytes({name: np.ones(48) for name in names})
    )

    with pytest.raises(ModelError, match=r"both are 'output_norm\.weight'"):
        open_source(tmp_path)


def test_exactly_the_needed_tensors_pass(tmp_path: Path) -> None:
    table = f32("rope_freqs.weight", 6)
    table.data[:] = np.ones(6, "<f4").view(np.uint8)
    source = open_source(small_gguf(tmp_path, None, table))

    check_tensors(source, EMBEDDING)


def test_every_missing_left_over_and_misshapen_tensor_is_named(tmp_path: Path) -> None:
    tensors = f32("left", 4), f32("over", 4), f32("wrong", 2, 3)
    source = open_source(small_gguf(tmp_path, None, *tensors))
    needed = EMBEDDING | {"wrong": (3, 2), "absent": (4,)}

    with pytest.raises(ModelError) as caught:
        check_tensors(source, needed)

    assert str(caught.value) == (
        f"{tmp_path / 'tiny.gguf'}: is no complete llama model; missing tensors: absent; "
        f"tensors that the model does not use: left, over; "
        f"tensors of another shape: wrong (is [2, 3], not [3, 2])"
    )


def test_a_long_list_of_missing_tensors_is_cut(tmp_path: Path) -> None:
    source = open_source(small_gguf(tmp_path))
    needed = EMBEDDING | {f"blk.{layer}.x": (4,) for layer in range(30)}

    with pytest.raises(ModelError, match=r"blk\.0\.x, .*blk\.7\.x and 22 more$"):
        check_tensors(source, needed)


def head_directory(directory: Path, *, tied: bool, head: bool) -> Path:
    small_directory(directory, {"tie_word_embeddings": tied})
    tensors = {"model.embed_tokens.weight": np.ones((10, 48))}
    if head:
        tensors["lm_head.weight"] = np.zeros((10, 48))
    (directory / "model.safetensors").write_bytes(safetensors_bytes(tensors))
    return directory


@pytest.mark.parametrize("head", [True, False])
def test_tied_embeddings_need_no_head_and_ignore_one(tmp_path: Path, head: bool) -> None:
    """Keeps B74 out: docs/bugbank.md."""
    source = open_source(head_directory(tmp_path, tied=True, head=head))

    check_tensors(source, EMBEDDING)


def test_untied_embeddings_without_a_head_are_an_error(tmp_path: Path) -> None:
    """Keeps B74 out: docs/bugbank.md."""
    source = open_source(head_directory(tmp_path, tied=False, head=False))

    with pytest.raises(ModelError, match=r"missing tensors: output\.weight$"):
        check_tensors(source, EMBEDDING | {"output.weight": (10, 48)})


def test_a_head_beside_untied_embeddings_must_be_used(tmp_path: Path) -> None:
    source = open_source(head_directory(tmp_path, tied=False, head=True))

    with pytest.raises(ModelError, match=r"does not use: output\.weight$"):
        check_tensors(source, EMBEDDING)


def test_the_digest_stays_the_same_for_the_same_content(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()

    first = open_source(small_gguf(tmp_path)).digest()
    second = open_source(small_gguf(tmp_path / "other")).digest()

    assert first == second
    assert len(first) == 32


def test_the_digest_changes_with_settings_and_with_weights(tmp_path: Path) -> None:
    path = small_gguf(tmp_path)
    digests = {open_source(path).digest()}
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    digests.add(open_source(path).digest())
    digests.add(open_source(small_gguf(tmp_path, {"general.name": "other"})).digest())

    assert len(digests) == 3


def test_the_digest_of_a_directory_covers_config_and_weights(tmp_path: Path) -> None:
    digests = {open_source(small_directory(tmp_path)).digest()}
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "rope_theta": 7.0}))
    digests.add(open_source(tmp_path).digest())
    weights = bytearray((tmp_path / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (tmp_path / "model.safetensors").write_bytes(weights)
    digests.add(open_source(tmp_path).digest())

    assert len(digests) == 3
