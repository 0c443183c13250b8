"""Convert a llama2.c checkpoint and its tokenizer to GGUF: `python -m tools.llama2c BIN TOK OUT`.

Source: `legacy_export` of karpathy/llama2.c's export.py and `build_tokenizer` of its run.c. Rows of
wq and wk are laid out for interleaved rotation there, as in GGUF files of the llama family.
"""

import argparse
import math
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tools.tiny_configs import Weights
from tools.tiny_formats import gguf_metadata

from kokuban.core.model_config import ModelConfig, RopeConfig
from kokuban.weights.gguf_write import WriteValue, write_gguf
from kokuban.weights.mapped import WeightTensor
from kokuban.weights.quant_types import TensorType
from kokuban.weights.quantize import quantize

_HEADER = struct.Struct("<7i")
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6
_SPECIAL = ("<unk>", "<s>", "</s>")


@dataclass(frozen=True, slots=True)
class Llama2c:
    """A checkpoint as its file states it."""

    config: ModelConfig
    weights: Weights
    """By GGUF names; q and k interleaved."""


def read_llama2c(path: Path) -> Llama2c:
    """Read a version 0 checkpoint: seven int32, then float32 tensors.

    Raises:
        ValueError: the file's size is not what its header says.
    """
    raw = path.read_bytes()
    dim, hidden, layers, heads, kv_heads, vocab, context = _HEADER.unpack_from(raw)
    head_dim = dim // heads
    config = ModelConfig(
        architecture="llama",
        name=path.stem,
        num_layers=layers,
        hidden_size=dim,
        intermediate_size=hidden,
        num_query_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=abs(vocab),
        max_positions=context,
        rms_norm_eps=1e-5,
        rope=RopeConfig(rotary_dim=head_dim, interleaved=True),
        tied_embeddings=vocab > 0,
        attention_scale=head_dim**-0.5,
    )
    reader = _Floats(np.frombuffer(raw, "<f4", offset=_HEADER.size))
    weights = _read_weights(reader, config)
    if reader.remaining:
        raise ValueError(f"{path}: {reader.remaining} floats more than the header says")
    return Llama2c(config, weights)


class _Floats:
    """Hands out the floats of a file in order."""

    def __init__(self, values: NDArray[np.float32]) -> None:
        self._values = values

    @property
    def remaining(self) -> int:
        return len(self._values)

    def take(self, *shape: int) -> NDArray[np.float32]:
        count = math.prod(shape)
        if count > self.remaining:
            raise ValueError(f"{list(shape)} floats wanted, {self.remaining} are left")
        taken, self._values = self._values[:count], self._values[count:]
        return taken.reshape(shape)


def _read_weights(floats: _Floats, cfg: ModelConfig) -> Weights:
    layers, dim, hidden = cfg.num_layers, cfg.hidden_size, cfg.intermediate_size
    kv = cfg.num_kv_heads * cfg.head_dim
    weights = {"token_embd.weight": floats.take(cfg.vocab_size, dim)}
    for part, shape in (
        ("attn_norm", (dim,)),
        ("attn_q", (dim, dim)),
        ("attn_k", (kv, dim)),
        ("attn_v", (kv, dim)),
        ("attn_output", (dim, dim)),
        ("ffn_norm", (dim,)),
        ("ffn_gate", (hidden, dim)),
        ("ffn_down", (dim, hidden)),
        ("ffn_up", (hidden, dim)),
    ):
        stacked = floats.take(layers, *shape)
        weights |= {f"blk.{layer}.{part}.weight": stacked[layer] for layer in range(layers)}
    weights["output_norm.weight"] = floats.take(dim)
    floats.take(2, cfg.max_positions, cfg.head_dim // 2)  # cos and sin, which we compute
    if not cfg.tied_embeddings:
        weights["output.weight"] = floats.take(cfg.vocab_size, dim)
    return weights


def read_tokenizer(path: Path, vocab_size: int) -> dict[str, WriteValue]:
    """The tokenizer as GGUF keys of the SentencePiece kind."""
    raw = path.read_bytes()
    offset = 4  # the length of the longest token
    tokens, scores, types = [], [], []
    for token_id in range(vocab_size):
        score, length = struct.unpack_from("<fi", raw, offset)
        piece = raw[offset + 8 : offset + 8 + length].decode()
        offset += 8 + length
        is_byte = len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">")
        if token_id < len(_SPECIAL):
            piece = _SPECIAL[token_id]
        types.append(
            (_UNKNOWN, _CONTROL, _CONTROL)[token_id]
            if token_id < len(_SPECIAL)
            else (_BYTE if is_byte else _NORMAL)
        )
        tokens.append(piece.replace(" ", "▁"))
        scores.append(score)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.add_eos_token": False,
        "tokenizer.ggml.add_space_prefix": True,
    }


def convert_llama2c(checkpoint: Path, tokenizer: Path, directory: Path) -> Path:
    """Write `directory`/<checkpoint's stem>.gguf, float32 throughout; returns its path."""
    model = read_llama2c(checkpoint)
    metadata = gguf_metadata(model.config) | read_tokenizer(tokenizer, model.config.vocab_size)
    f32 = TensorType.F32
    tensors = [
        WeightTensor(name, f32, array.shape, quantize(array, f32))
        for name, array in model.weights.items()
    ]
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{checkpoint.stem}.gguf"
    write_gguf(path, metadata, tensors)
    return path


def main() -> None:
    """Convert one checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("directory", type=Path)
    args = parser.parse_args()
    print(convert_llama2c(args.checkpoint, args.tokenizer, args.directory))


if __name__ == "__main__":
    main()
