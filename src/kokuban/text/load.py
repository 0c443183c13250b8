"""Builds the text side of a model from what its files say."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from kokuban.core.errors import ModelError
from kokuban.text.chat import ChatTemplate
from kokuban.text.gguf_tokenizer import FindMerges, from_gguf
from kokuban.text.tokenizer import Tokenizer


class TokenizerFiles(Protocol):
    """What is asked of a model's files; `weights.tokenizer_source` has it."""

    @property
    def kind(self) -> Literal["gguf", "hf"]: ...
    @property
    def metadata(self) -> Mapping[str, Any] | None: ...
    @property
    def tokenizer_json(self) -> Path | None: ...
    @property
    def tokenizer_config(self) -> Mapping[str, Any]: ...
    @property
    def chat_template(self) -> str | None: ...
    @property
    def named_templates(self) -> Mapping[str, str]: ...
    @property
    def end_token_ids(self) -> frozenset[int]: ...


class ModelText(NamedTuple):
    """A model's tokenizer and chat template."""

    tokenizer: Tokenizer
    chat_template: ChatTemplate


def load_text(files: TokenizerFiles, find_merges: FindMerges | None = None) -> ModelText:
    """Build tokenizer and chat template.

    Args:
        find_merges: see `from_gguf`.

    Raises:
        ModelError: the files contradict themselves, or are of a kind that is not supported.
    """
    tokenizer = _tokenizer(files, find_merges)
    template = ChatTemplate(files.chat_template, tokenizer, named=files.named_templates)
    return ModelText(tokenizer, template)


def _tokenizer(files: TokenizerFiles, find_merges: FindMerges | None) -> Tokenizer:
    if files.kind == "gguf":
        return from_gguf(files.metadata or {}, end_ids=files.end_token_ids, find_merges=find_merges)
    if files.tokenizer_json is None:
        raise ModelError("the model has no tokenizer.json")
    try:
        text = files.tokenizer_json.read_text("utf-8")
    except (OSError, UnicodeError) as error:
        raise ModelError(f"{files.tokenizer_json} cannot be read: {error}") from error
    from kokuban.text.hf_tokenizer import from_hf  # A start from a GGUF file needs none of it.

    return from_hf(text, files.tokenizer_config, end_ids=files.end_token_ids)
