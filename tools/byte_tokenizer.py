"""A tokenizer whose ids are byte values, in the forms that model files have. For tests."""

import json
from pathlib import Path
from typing import Any

SPECIAL_TOKENS = ("<|bos|>", "<|im_start|>", "<|im_end|>", "<|eot|>")
"""Ids 256 and up; control tokens."""

PLAIN_TOKENS = ("<tool_call>", "</tool_call>")
"""Ids after the special ones; added to the vocabulary, but text like any other."""

BOS_ID, END_ID = 256, 258

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_GGUF_NORMAL, _GGUF_CONTROL, _GGUF_USER_DEFINED, _GGUF_UNUSED = 1, 3, 4, 5


def byte_pieces() -> list[str]:
    """The character that stands for each byte in byte-level vocabularies.

    Source: Radford et al. 2019 (GPT-2): printable Latin-1 stands for itself, the rest is moved up.
    """
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    moved = iter(range(256, 512))
    return [chr(byte if byte in printable else next(moved)) for byte in range(256)]


def tokenizer_json(extra_pieces: tuple[str, ...] = ()) -> dict[str, Any]:
    """`tokenizer.json`: BPE without merges. `extra_pieces` get the ids after `PLAIN_TOKENS`."""
    pieces = byte_pieces()
    added = (*SPECIAL_TOKENS, *PLAIN_TOKENS, *extra_pieces)
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": 256 + i,
                "content": content,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": content in SPECIAL_TOKENS,
            }
            for i, content in enumerate(added)
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level | {"trim_offsets": True},
        "post_processor": None,
        "decoder": byte_level | {"trim_offsets": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {piece: i for i, piece in enumerate(pieces)},
            "merges": [],
        },
    }


def write_tokenizer(directory: Path, extra_pieces: tuple[str, ...] = ()) -> None:
    """Write tokenizer.json, tokenizer_config.json and generation_config.json."""
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL_TOKENS[0],
        "eos_token": SPECIAL_TOKENS[END_ID - 256],
        "add_bos_token": False,
        "chat_template": CHATML,
        "clean_up_tokenization_spaces": False,
    }
    generation = {"bos_token_id": BOS_ID, "eos_token_id": END_ID}
    for name, content in (
        ("tokenizer.json", tokenizer_json(extra_pieces)),
        ("tokenizer_config.json", config),
        ("generation_config.json", generation),
    ):
        (directory / name).write_text(json.dumps(content), encoding="utf-8")


def gguf_metadata(vocab_size: int) -> dict[str, Any]:
    """The same tokenizer as GGUF keys, filled up with unused tokens to the vocabulary's size."""
    named = [*byte_pieces(), *SPECIAL_TOKENS, *PLAIN_TOKENS]
    types = [_GGUF_NORMAL] * 256 + [_GGUF_CONTROL] * len(SPECIAL_TOKENS)
    types += [_GGUF_USER_DEFINED] * len(PLAIN_TOKENS)
    padding = range(len(named), vocab_size)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": named + [f"[PAD{i}]" for i in padding],
        "tokenizer.ggml.token_type": types + [_GGUF_UNUSED] * len(padding),
        "tokenizer.ggml.merges": [],
        "tokenizer.ggml.bos_token_id": BOS_ID,
        "tokenizer.ggml.eos_token_id": END_ID,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHATML,
    }
