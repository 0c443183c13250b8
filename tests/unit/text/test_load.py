from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from tests.fakes_text import EOT, byte_tokenizer_json, sentencepiece_metadata

from kokuban.core.errors import ModelError
from kokuban.text.load import load_text


@dataclass(frozen=True)
class Files:
    kind: Literal["gguf", "hf"]
    metadata: Mapping[str, Any] | None = None
    tokenizer_json: Path | None = None
    tokenizer_config: Mapping[str, Any] = field(default_factory=dict)
    chat_template: str | None = "{{ bos_token }}"
    named_templates: Mapping[str, str] = field(default_factory=dict)
    end_token_ids: frozenset[int] = frozenset({5})


def test_a_gguf_file_gives_tokenizer_and_template() -> None:
    text = load_text(Files("gguf", metadata=sentencepiece_metadata()))

    assert text.tokenizer.end_ids == {2, 5}
    assert text.chat_template.encode_chat([{"role": "user", "content": "x"}]) == [1]


def test_a_directory_gives_tokenizer_and_template(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(byte_tokenizer_json())

    text = load_text(Files("hf", tokenizer_json=path, tokenizer_config={"eos_token": "<|eot|>"}))

    assert (text.tokenizer.eos_id, text.tokenizer.end_ids) == (EOT, frozenset({5}))


@pytest.mark.parametrize("content", [None, b"\xff"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(ModelError, match=r"tokenizer\.json cannot be read"):
        load_text(Files("hf", tokenizer_json=path))
