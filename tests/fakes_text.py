"""Vocabularies whose ids can be read by eye: single bytes, and a few SentencePiece words."""

import json
from collections.abc import Sequence
from typing import Any

from kokuban.text.hf_tokenizer import from_hf
from kokuban.text.tokenizer import Tokenizer, byte_alphabet

BOS, IM_START, IM_END, EOT, TOOL_CALL, TOOL_CALL_END = range(256, 262)
FIRST_PIECE = 262
"""Id of the first text piece that a test adds."""

_SPECIALS = ("<|bos|>", "<|im_start|>", "<|im_end|>", "<|eot|>")
_MARKERS = ("<tool_call>", "</tool_call>")

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_tokenizer_json(pieces: Sequence[str] = ()) -> str:
    """tokenizer.json: id = byte value, 256 to 259 special, 260 and 261 added, then `pieces`."""
    # A single character has its byte's id already, and the library would give it that one.
    assert all(len(piece) > 1 or not piece.isascii() for piece in pieces)
    texts = (*_SPECIALS, *_MARKERS, *pieces)
    added = [_added(256 + i, text, special=text in _SPECIALS) for i, text in enumerate(texts)]
    return json.dumps(
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": added,
            "normalizer": None,
            "pre_tokenizer": _byte_level(),
            "post_processor": None,
            "decoder": _byte_level(),
            "model": {"type": "BPE", "vocab": byte_alphabet(), "merges": []},
        }
    )


def byte_tokenizer(pieces: Sequence[str] = (), *, add_bos: bool = False) -> Tokenizer:
    """The tokenizer of `byte_tokenizer_json`; BOS 256, end of text 259."""
    config = {"bos_token": "<|bos|>", "eos_token": "<|eot|>", "add_bos_token": add_bos}
    return from_hf(byte_tokenizer_json(pieces), config, end_ids=[EOT])


def sentencepiece_metadata(**more: Any) -> dict[str, Any]:
    """The smallest vocabulary with byte fallback and a few words."""
    words = ["▁Hello", "▁world", "Hello", "▁", "user", "▁user", *"Helowrdus"]
    bytes_ = [f"<0x{value:02X}>" for value in range(256)]
    tokens = ["<unk>", "<s>", "</s>", *bytes_, *words, "▁H", "▁w", "He", "ll", "Hell", "us", "use"]
    types = [2, 3, 3] + [6] * 256 + [1] * (len(tokens) - 259)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.scores": [0.0] * 259 + [float(-i) for i in range(len(tokens) - 259)],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_bos_token": True,
    } | {f"tokenizer.ggml.{key}": value for key, value in more.items()}


def _byte_level() -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False,
            "use_regex": False}  # fmt: skip


def _added(token_id: int, text: str, *, special: bool) -> dict[str, Any]:
    return {"id": token_id, "content": text, "special": special, "single_word": False,
            "lstrip": False, "rstrip": False, "normalized": False}  # fmt: skip
