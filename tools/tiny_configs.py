"""Tiny random models: their numbers, and weights that any machine makes again from a seed."""

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kokuban.core.model_config import Architecture, ModelConfig, RopeConfig
from kokuban.models.registry import build_program
from kokuban.program.program import WeightSpec

Weights = dict[str, NDArray[np.float32]]

VOCAB_SIZE = 320
WINDOW = 24

_SCALINGS: Mapping[str, RopeConfig] = {
    "linear": RopeConfig(rotary_dim=32, scaling="linear", factor=4.0),
    "llama3": RopeConfig(rotary_dim=32, scaling="llama3", factor=8.0, original_max_positions=64),
    "yarn": RopeConfig(rotary_dim=32, scaling="yarn", factor=8.0, original_max_positions=64),
}


def tiny_config(architecture: Architecture, name: str = "tiny") -> ModelConfig:
    """About 2 million parameters; every matrix has rows of 256 or 512, as K-quants need.

    Heads are grouped 4 to 1, q is as wide as the hidden state, the embedding is tied in qwen and
    gemma.
    """
    gemma, qwen = architecture == "gemma3", architecture in ("qwen2", "qwen3")
    head_dim = 64 if gemma else 32
    return ModelConfig(
        architecture=architecture,
        name=name,
        num_layers=6 if gemma else 3,
        hidden_size=256,
        intermediate_size=512,
        num_query_heads=256 // head_dim,
        num_kv_heads=1 if gemma else 2,
        head_dim=head_dim,
        vocab_size=VOCAB_SIZE,
        max_positions=512,
        rms_norm_eps=1e-6,
        rope=RopeConfig(theta=1e6 if gemma or qwen else 1e4, rotary_dim=head_dim),
        rope_local=RopeConfig(theta=1e4, rotary_dim=head_dim) if gemma else None,
        sliding_window=WINDOW if gemma else None,
        window_layers=(True, True, True, True, True, False) if gemma else (),
        tied_embeddings=gemma or qwen,
        qkv_bias=architecture == "qwen2",
        qk_norm=gemma or architecture == "qwen3",
        attention_scale=head_dim**-0.5,
        embedding_scale=16.0 if gemma else 1.0,
        activation="gelu_tanh" if gemma else "silu",
        norm_weight_offset=1.0 if gemma else 0.0,
    )


def _scaled(scaling: str) -> ModelConfig:
    return replace(tiny_config("llama"), rope=_SCALINGS[scaling])


def _mistral() -> ModelConfig:
    return replace(tiny_config("llama"), sliding_window=WINDOW, window_layers=(True,) * 3)


def _phi3_longrope() -> ModelConfig:
    pairs = range(12)
    rope = RopeConfig(
        rotary_dim=24,
        scaling="longrope",
        factor=512 / 32,
        original_max_positions=32,
        short_factors=tuple(1 + i / 32 for i in pairs),
        long_factors=tuple(1 + i / 2 for i in pairs),
    )
    return replace(tiny_config("phi3"), rope=rope)


def _gemma3_scaled() -> ModelConfig:
    """The shape of the larger gemmas: linear scaling on full layers, soft-capped logits."""
    cfg = tiny_config("gemma3")
    rope = replace(cfg.rope, scaling="linear", factor=8.0)
    return replace(cfg, rope=rope, attention_scale=48**-0.5, final_softcap=8.0)


def _qwen3_wide() -> ModelConfig:
    """head_dim is not hidden_size / num_query_heads, and there are 3 query heads to a KV head."""
    cfg = tiny_config("qwen3")
    rope = replace(cfg.rope, rotary_dim=64)
    cfg = replace(cfg, rope=rope, tied_embeddings=False, attention_scale=0.125)
    return replace(cfg, num_query_heads=12, num_kv_heads=4, head_dim=64)


VARIANTS: Mapping[str, Callable[[], ModelConfig]] = {
    "llama": lambda: tiny_config("llama"),
    "llama_tied": lambda: replace(tiny_config("llama"), tied_embeddings=True),
    "llama_linear": lambda: _scaled("linear"),
    "llama_llama3": lambda: _scaled("llama3"),
    "llama_yarn": lambda: _scaled("yarn"),
    "mistral": _mistral,
    "qwen2": lambda: tiny_config("qwen2"),
    "qwen3": lambda: tiny_config("qwen3"),
    "qwen3_wide": _qwen3_wide,
    "phi3": lambda: tiny_config("phi3"),
    "phi3_longrope": _phi3_longrope,
    "gemma3": lambda: tiny_config("gemma3"),
    "gemma3_scaled": _gemma3_scaled,
}
"""Every architecture, and the choices inside one that change its numbers."""

HF_ONLY = frozenset({"gemma3_scaled"})
"""GGUF has no key for an attention scale that is not head_dim ** -0.5."""


def variant_config(variant: str) -> ModelConfig:
    """The numbers of one of `VARIANTS`, under the variant's name."""
    return replace(VARIANTS[variant](), name=variant)


def random_weights(config: ModelConfig, seed: int = 0) -> Weights:
    """float32 arrays for every weight of the model's Program, as the Program reads them.

    q and k are laid out for halves (not interleaved), norm offsets are added already. A tensor
    depends on its name, its shape and the seed only, and is the same to the bit everywhere.
    """
    return {
        name: uniform(f"{seed} {name}", spec.shape) * gain + offset
        for name, spec in build_program(config).weights.items()
        for gain, offset in [_spread(name, spec, config.vocab_size)]
    }


def _spread(name: str, spec: WeightSpec, vocab_size: int) -> tuple[np.float32, np.float32]:
    """Half the width of a weight's distribution, and its middle."""
    gain, offset = 0.5, 0.0  # biases, and an embedding that is no output head
    if "norm" in name:
        # What post norms let through must outweigh the embedding, or the model says its input.
        offset = 4.0 if "post" in name else 1.0
        gain = offset / 4
    elif spec.matmul:
        # Products of inputs of variance 1 have a variance near 1, logits near 3.
        gain = (3 if spec.shape[0] == vocab_size else 2) / math.sqrt(spec.shape[-1])
    return np.float32(gain), np.float32(offset)


def uniform(key: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Multiples of 2⁻²³ between -1 and 1, all equally likely: exact on every machine."""
    digest = hashlib.blake2b(key.encode(), digest_size=16).digest()
    count = math.prod(shape)
    raw = np.random.Philox(key=int.from_bytes(digest, "little")).random_raw((count + 1) // 2)
    bits = raw.view(np.uint32)[:count] >> 8
    return (bits.astype(np.float32) * np.float32(2**-23) - 1).reshape(shape)
