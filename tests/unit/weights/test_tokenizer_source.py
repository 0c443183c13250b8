"""What files say about their tokenizer: end tokens from every source, templates, contradictions."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.unit.weights.small_models import small_directory, small_gguf

from kokuban.core.errors import ModelError
from kokuban.weights.gguf_write import WriteValue
from kokuban.weights.source import open_source
from kokuban.weights.tokenizer_source import TokenizerSource

KEY = "tokenizer.ggml."


def gguf_tokenizer(directory: Path, **changes: WriteValue) -> TokenizerSource:
    renamed = {KEY + key: value for key, value in changes.items()}
    return open_source(small_gguf(directory, renamed)).tokenizer_source()


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value))


def test_gguf_ends_are_those_of_sequence_turn_and_message(tmp_path: Path) -> None:
    """Keeps B17 out: docs/bugbank.md."""
    tokenizer = gguf_tokenizer(tmp_path, eos_token_id=1, eot_token_id=3, eom_token_id=2)

    assert tokenizer.end_token_ids == {1, 2, 3}


def test_gguf_metadata_holds_the_vocabulary(tmp_path: Path) -> None:
    tokenizer = gguf_tokenizer(tmp_path)

    assert tokenizer.metadata is not None
    assert list(tokenizer.metadata[KEY + "tokens"]) == ["a", "b", "<end>", "<turn>"]
    assert list(tokenizer.metadata[KEY + "token_type"]) == [1, 1, 3, 3]


def test_gguf_templates_are_the_default_and_the_named(tmp_path: Path) -> None:
    changes = {"tokenizer.chat_template": "T", "tokenizer.chat_template.tool_use": "U"}

    tokenizer = open_source(small_gguf(tmp_path, changes)).tokenizer_source()

    assert tokenizer.chat_template == "T"
    assert tokenizer.named_templates == {"tool_use": "U"}


GGUF_FAULTS: Mapping[str, tuple[dict[str, WriteValue], str]] = {
    "no model": ({"model": 3}, "has no tokenizer"),
    "types of another type": ({"token_type": [1.0] * 4}, "token_type is no array of the type"),
    "too few types": ({"token_type": [1, 1]}, "token_type has 2 entries for 4 tokens"),
    "too few scores": ({"scores": [0.5]}, "scores has 1 entries for 4 tokens"),
    "merges that are numbers": ({"merges": [1]}, "merges is no array of strings"),
    "end out of range": ({"eos_token_id": 4}, "eos_token_id is 4, no id of the 4 tokens"),
    "begin out of range": ({"bos_token_id": 99}, "bos_token_id is 99"),
    "end that is text": ({"eot_token_id": "<end>"}, "eot_token_id is '<end>'"),
}


@pytest.mark.parametrize(("changes", "problem"), GGUF_FAULTS.values(), ids=GGUF_FAULTS)
def test_contradictions_give_one_line_that_names_them(
    tmp_path: Path, changes: dict[str, WriteValue], problem: str
) -> None:
    with pytest.raises(ModelError) as caught:
        gguf_tokenizer(tmp_path, **changes)

    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("generation", "config", "ends"),
    [([7, 8], None, {7, 8}), (7, None, {7}), (None, 9, {9}), ([7], [8, 9], {7, 8, 9})],
)
def test_directory_ends_are_lists_or_single_ids_of_either_file(
    tmp_path: Path, generation: Any, config: Any, ends: set[int]
) -> None:
    """Keeps B17 out: docs/bugbank.md."""
    small_directory(tmp_path, {"eos_token_id": config})
    write_json(tmp_path / "generation_config.json", {"eos_token_id": generation})

    assert open_source(tmp_path).end_token_ids == ends


def test_the_tokenizers_end_is_found_by_its_text_in_its_own_table(tmp_path: Path) -> None:
    small_directory(tmp_path, {"eos_token_id": 7})
    decoder = {"3": {"content": "<end>"}, "4": {"content": "<other>"}}
    config = {"eos_token": {"content": "<end>"}, "added_tokens_decoder": decoder}
    write_json(tmp_path / "tokenizer_config.json", config)

    assert open_source(tmp_path).end_token_ids == {3, 7}


def test_or_in_the_added_tokens_of_tokenizer_json(tmp_path: Path) -> None:
    small_directory(tmp_path)
    write_json(tmp_path / "tokenizer_config.json", {"eos_token": "<turn>"})

    assert open_source(tmp_path).end_token_ids == {6}


def test_a_model_that_names_no_end_is_warned_about(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    small_directory(tmp_path)

    assert open_source(tmp_path).end_token_ids == frozenset()
    assert "names no end-of-turn token" in caplog.text


def test_a_template_file_goes_before_the_one_in_tokenizer_config(tmp_path: Path) -> None:
    small_directory(tmp_path)
    write_json(tmp_path / "tokenizer_config.json", {"chat_template": "old"})
    assert open_source(tmp_path).tokenizer_source().chat_template == "old"

    (tmp_path / "chat_template.jinja").write_text("new")
    assert open_source(tmp_path).tokenizer_source().chat_template == "new"


def test_a_list_of_templates_has_a_default_and_named_ones(tmp_path: Path) -> None:
    small_directory(tmp_path)
    templates = [{"name": "default", "template": "D"}, {"name": "rag", "template": "R"}]
    write_json(tmp_path / "tokenizer_config.json", {"chat_template": templates})
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("U")

    tokenizer = open_source(tmp_path).tokenizer_source()

    assert tokenizer.chat_template == "D"
    assert tokenizer.named_templates == {"rag": "R", "tool_use": "U"}


def test_a_directory_without_a_tokenizer_says_so(tmp_path: Path) -> None:
    (small_directory(tmp_path) / "tokenizer.json").unlink()

    with pytest.raises(ModelError, match=r"holds no tokenizer\.json"):
        open_source(tmp_path).tokenizer_source()


def test_entries_of_the_token_table_that_are_none_are_passed_over(tmp_path: Path) -> None:
    decoder = {"7": {"content": "</s>"}, "8": 5, "9": None, "9" * 5000: {"content": "</s>"}}
    small_directory(tmp_path)
    config = {"eos_token": "</s>", "added_tokens_decoder": decoder}
    write_json(tmp_path / "tokenizer_config.json", config)

    assert 7 in open_source(tmp_path).end_token_ids
    assert open_source(tmp_path).end_token_ids < set(range(10))


@pytest.mark.parametrize("name", ["chat_template.jinja", "additional_chat_templates/rag.jinja"])
def test_a_template_that_is_no_utf8_is_named(tmp_path: Path, name: str) -> None:
    path = small_directory(tmp_path) / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"\xff{{ x }}")

    with pytest.raises(ModelError, match=rf"{name}: cannot be read: 'utf-8' codec"):
        open_source(tmp_path).tokenizer_source()


@pytest.mark.parametrize(
    ("content", "problem"), [("{", "is no valid JSON"), ("[1]", "is no JSON object")]
)
def test_a_broken_side_file_is_named(tmp_path: Path, content: str, problem: str) -> None:
    small_directory(tmp_path)
    (tmp_path / "generation_config.json").write_text(content)

    with pytest.raises(ModelError, match=rf"generation_config\.json: {problem}"):
        _ = open_source(tmp_path).end_token_ids
