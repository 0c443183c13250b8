"""Writes tiny GGUF files and model directories with chosen settings."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kokuban.weights.gguf_write import WriteValue, write_gguf
from kokuban.weights.mapped import WeightTensor
from kokuban.weights.quant_types import TensorType

GGUF_LLAMA: Mapping[str, WriteValue] = {
    "general.architecture": "llama",
    "general.name": "tiny",
    "llama.block_count": 2,
    "llama.context_length": 128,
    "llama.embedding_length": 48,
    "llama.feed_forward_length": 96,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 0.5,
    "llama.rope.freq_base": 500000.0,
}

GGUF_TOKENIZER: Mapping[str, WriteValue] = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": ["a", "b", "<end>", "<turn>"],
    "tokenizer.ggml.token_type": [1, 1, 3, 3],
    "tokenizer.ggml.merges": ["a b"],
    "tokenizer.ggml.eos_token_id": 2,
}

HF_LLAMA: Mapping[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "max_position_embeddings": 128,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 10,
    "rms_norm_eps": 0.5,
    "rope_theta": 500000.0,
}


def f32(name: str, *shape: int) -> WeightTensor:
    """A tensor of 0, 1, 2 …"""
    values = np.arange(np.prod(shape), dtype="<f4")
    return WeightTensor(name, TensorType.F32, shape, values.view(np.uint8))


def small_gguf(
    directory: Path, changes: Mapping[str, WriteValue] | None = None, *tensors: WeightTensor
) -> Path:
    """A llama GGUF file with an embedding of ten rows; `changes` go over its settings."""
    path = directory / "tiny.gguf"
    metadata = {**GGUF_LLAMA, **GGUF_TOKENIZER, **(changes or {})}
    write_gguf(path, metadata, [f32("token_embd.weight", 10, 48), *tensors])
    return path


def rename_architecture(architecture: str) -> dict[str, WriteValue]:
    """The settings of `GGUF_LLAMA` for another architecture."""
    renamed = {key.replace("llama.", f"{architecture}."): v for key, v in GGUF_LLAMA.items()}
    return {**renamed, "general.architecture": architecture}


def safetensors_bytes(
    tensors: Mapping[str, np.ndarray], entries: Mapping[str, Any] | None = None
) -> bytes:
    """A safetensors file of float32 arrays; `entries` go over those of the header."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, values in tensors.items():
        raw = values.astype("<f4").tobytes()
        offsets = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": offsets}
        data += raw
    encoded = json.dumps({**header, **(entries or {})}).encode()
    return struct.pack("<Q", len(encoded)) + encoded + data


def small_directory(directory: Path, changes: Mapping[str, Any] | None = None) -> Path:
    """A llama directory of one safetensors file with an embedding and a norm."""
    (directory / "config.json").write_text(json.dumps({**HF_LLAMA, **(changes or {})}))
    tensors = {"model.embed_tokens.weight": np.ones((10, 48)), "model.norm.weight": np.ones(48)}
    (directory / "model.safetensors").write_bytes(safetensors_bytes(tensors))
    added = [{"id": 5, "content": "<end>"}, {"id": 6, "content": "<turn>"}]
    (directory / "tokenizer.json").write_text(json.dumps({"added_tokens": added, "model": {}}))
    return directory
