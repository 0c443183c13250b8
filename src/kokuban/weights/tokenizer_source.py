"""What a model's files say about its tokenizer, checked, for `text` to build from.

Who says which tokens end a turn differs from file to file, so every source is asked: GGUF's ids of
end of sequence, turn and message; generation_config.json, config.json and tokenizer_config.json.
"""

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from kokuban.core.errors import ModelError
from kokuban.weights.fields import shown
from kokuban.weights.gguf import MetadataValue, StringArray
from kokuban.weights.safetensors import read_json

logger = logging.getLogger(__name__)

GGUF_TEMPLATE = "tokenizer.chat_template"
TOKENIZER_JSON = "tokenizer.json"

_KEY = "tokenizer.ggml."
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
_ID_KEYS = (*_END_KEYS, "bos_token_id", "unknown_token_id", "padding_token_id")
_INTEGER_FORMATS = ("i", "I")
_DEFAULT_TEMPLATE = "default"
_MAX_ID_DIGITS = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerSource:
    """Everything about text in a model's files. One of `metadata` and `tokenizer_json` is set."""

    kind: Literal["gguf", "hf"]
    metadata: Mapping[str, MetadataValue] | None = None
    """GGUF: all keys. Arrays are sequences that are decoded when first read."""

    tokenizer_json: Path | None = None
    """HF: the file that `tokenizers` reads."""

    tokenizer_config: Mapping[str, Any] = field(default_factory=dict)
    """HF: tokenizer_config.json, parsed; empty where there is none."""

    chat_template: str | None = None
    named_templates: Mapping[str, str] = field(default_factory=dict)
    """Other templates of the model, such as "tool_use"."""

    end_token_ids: frozenset[int] = frozenset()
    """Ids that end the model's turn, from every source that names one."""


def gguf_tokenizer_source(metadata: Mapping[str, MetadataValue], path: Path) -> TokenizerSource:
    """The tokenizer of a GGUF file.

    Raises:
        ModelError: there is none, or its parts contradict each other.
    """
    problems = list(_gguf_problems(metadata))
    if problems:
        raise ModelError(f"{path}: " + "; ".join(problems))
    named = {
        key.removeprefix(GGUF_TEMPLATE + "."): value
        for key, value in metadata.items()
        if key.startswith(GGUF_TEMPLATE + ".") and isinstance(value, str)
    }
    template = metadata.get(GGUF_TEMPLATE)
    ends = (metadata.get(_KEY + key) for key in _END_KEYS)
    return TokenizerSource(
        kind="gguf",
        metadata=metadata,
        chat_template=template if isinstance(template, str) else None,
        named_templates=named,
        end_token_ids=_warned({end for end in ends if isinstance(end, int)}, path),
    )


def hf_tokenizer_source(directory: Path, config: Mapping[str, Any]) -> TokenizerSource:
    """The tokenizer of a Hugging Face directory.

    Args:
        config: its config.json, parsed.

    Raises:
        ModelError: tokenizer.json is missing, or a file cannot be read.
    """
    tokenizer_json = directory / TOKENIZER_JSON
    if not tokenizer_json.exists():
        raise ModelError(
            f"{directory}: holds no {TOKENIZER_JSON}; save it with the model's fast tokenizer"
        )
    tokenizer_config = _optional_json(directory / "tokenizer_config.json")
    generation = _optional_json(directory / "generation_config.json")
    ends = {*_ids(generation.get("eos_token_id")), *_ids(config.get("eos_token_id"))}
    ends |= _tokenizer_config_end(tokenizer_config, tokenizer_json)
    template, named = _hf_templates(directory, tokenizer_config)
    return TokenizerSource(
        kind="hf",
        tokenizer_json=tokenizer_json,
        tokenizer_config=tokenizer_config,
        chat_template=template,
        named_templates=named,
        end_token_ids=_warned(ends, directory),
    )


def _gguf_problems(metadata: Mapping[str, MetadataValue]) -> Iterator[str]:
    tokens = metadata.get(_KEY + "tokens")
    if not isinstance(metadata.get(_KEY + "model"), str) or not isinstance(tokens, StringArray):
        yield f"has no tokenizer: {_KEY}model and {_KEY}tokens are missing or of another type"
        return
    for key, formats in (("token_type", _INTEGER_FORMATS), ("scores", ("f",))):
        value = metadata.get(_KEY + key)
        if value is None:
            continue
        if not isinstance(value, memoryview) or value.format not in formats:
            yield f"{_KEY}{key} is no array of the type that the format defines"
        elif len(value) != len(tokens):
            yield f"{_KEY}{key} has {len(value)} entries for {len(tokens)} tokens"
    if not isinstance(metadata.get(_KEY + "merges", tokens), StringArray):
        yield f"{_KEY}merges is no array of strings"
    for key in _ID_KEYS:
        value = metadata.get(_KEY + key, 0)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < len(tokens):
            yield f"{_KEY}{key} is {shown(value)}, no id of the {len(tokens)} tokens"


def _optional_json(path: Path) -> dict[str, Any]:
    return read_json(path) if path.exists() else {}


def _ids(value: Any) -> set[int]:
    """A single id, a list of them, or nothing."""
    values = value if isinstance(value, list) else [value]
    return {
        element for element in values if isinstance(element, int) and not isinstance(element, bool)
    }


def _tokenizer_config_end(tokenizer_config: Mapping[str, Any], tokenizer_json: Path) -> set[int]:
    """The id of tokenizer_config.json's eos_token, which is given as text."""
    token = tokenizer_config.get("eos_token")
    text = token.get("content") if isinstance(token, dict) else token
    if not isinstance(text, str):
        return set()
    decoder = tokenizer_config.get("added_tokens_decoder")
    if isinstance(decoder, dict):
        added = [
            {**entry, "id": int(key)}
            for key, entry in decoder.items()
            if isinstance(entry, dict) and key.isdecimal() and len(key) <= _MAX_ID_DIGITS
        ]
    else:
        added = _added_tokens(tokenizer_json)
    return {
        identifier
        for entry in added
        if entry.get("content") == text
        for identifier in _ids(entry.get("id"))
    }


def _added_tokens(tokenizer_json: Path) -> list[dict[str, Any]]:
    """The added tokens of tokenizer.json, read without parsing the megabytes of vocabulary."""
    text = _read_text(tokenizer_json)
    start = text.find("[", text.find('"added_tokens"'))
    if '"added_tokens"' not in text or start < 0:
        return []
    try:
        entries, _ = json.JSONDecoder().raw_decode(text, start)
    except (ValueError, RecursionError) as error:
        raise ModelError(
            f"{tokenizer_json}: its added_tokens are no valid JSON: {error}"
        ) from error
    return [entry for entry in entries if isinstance(entry, dict)]


def _hf_templates(
    directory: Path, tokenizer_config: Mapping[str, Any]
) -> tuple[str | None, dict[str, str]]:
    """The default template and the others: files of their own go before tokenizer_config.json."""
    named: dict[str, str] = {}
    stated = tokenizer_config.get("chat_template")
    if isinstance(stated, str):
        named[_DEFAULT_TEMPLATE] = stated
    elif isinstance(stated, list):
        for entry in stated:
            if isinstance(entry, dict) and isinstance(entry.get("template"), str):
                named[str(entry.get("name"))] = entry["template"]
    for path in sorted((directory / "additional_chat_templates").glob("*.jinja")):
        named[path.stem] = _read_text(path)
    own_file = directory / "chat_template.jinja"
    if own_file.exists():
        named[_DEFAULT_TEMPLATE] = _read_text(own_file)
    return named.pop(_DEFAULT_TEMPLATE, None), named


def _read_text(path: Path) -> str:
    """Raises `ModelError` when it cannot be read, or is no UTF-8."""
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeError) as error:
        raise ModelError(f"{path}: cannot be read: {error}") from error


def _warned(ends: set[int], path: Path) -> frozenset[int]:
    if not ends:
        logger.warning("%s names no end-of-turn token: texts end at max_tokens or a stop", path)
    return frozenset(ends)
