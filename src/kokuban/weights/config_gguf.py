"""GGUF metadata becomes a `ModelConfig`.

Where files say nothing, what their converters mean holds: llama files have the rows of q and k
permuted for interleaved pairs, the others do not; gemma3 files hold 1 + w as norm weights, have a
window in five of six layers, and rotate window layers with base 10,000.

Source: ggml's docs/gguf.md; llama.cpp's `llama_model::load_hparams` for what files leave out.
"""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kokuban.core.model_config import Architecture, ModelConfig, RopeConfig
from kokuban.weights.config_shared import (
    ARCHITECTURES,
    GEMMA3_WINDOW_PERIOD,
    MAX_LAYERS,
    MAX_POSITIONS,
    reachable_positions,
    window_layers,
)
from kokuban.weights.fields import Fields, shown
from kokuban.weights.mapped import TensorTable
from kokuban.weights.quant_types import TensorType

EMBEDDING = "token_embd.weight"
OUTPUT_HEAD = "output.weight"
ROPE_FREQS = "rope_freqs.weight"
ROPE_LONG = "rope_factors_long.weight"
ROPE_SHORT = "rope_factors_short.weight"

_GEMMA3_27B_LAYERS = 62
_LOCAL_ROPE_THETA = 10_000.0
_MAX_ROPE_FACTORS = 4096


def read_gguf_config(metadata: Mapping[str, Any], tensors: TensorTable, path: Path) -> ModelConfig:
    """The model's numbers.

    Raises:
        ModelError: the architecture is not supported, or a setting is missing or impossible.
    """
    architecture = _architecture(Fields(metadata, path))
    fields = Fields(metadata, path, f"{architecture}.")
    hidden_size = fields.size("embedding_length")
    num_heads = fields.uniform_size("attention.head_count")
    num_layers = fields.size("block_count", most=MAX_LAYERS)
    head_dim = _head_dim(fields, hidden_size, num_heads)
    rope = _rope(fields, architecture, head_dim, tensors)
    shared = ModelConfig(
        architecture=architecture,
        name=Fields(metadata, path).text("general.name", path.stem),
        num_layers=num_layers,
        hidden_size=hidden_size,
        intermediate_size=fields.uniform_size("feed_forward_length"),
        num_query_heads=num_heads,
        num_kv_heads=fields.uniform_size("attention.head_count_kv", num_heads),
        head_dim=head_dim,
        vocab_size=tensors.info(EMBEDDING).shape[0],
        max_positions=reachable_positions(fields.size("context_length", most=MAX_POSITIONS), rope),
        rms_norm_eps=fields.number("attention.layer_norm_rms_epsilon"),
        rope=rope,
        tied_embeddings=OUTPUT_HEAD not in tensors,
        qkv_bias="blk.0.attn_q.bias" in tensors,
        qk_norm="blk.0.attn_q_norm.weight" in tensors,
        attention_scale=head_dim**-0.5,
        attention_softcap=fields.optional_number("attn_logit_softcapping"),
        final_softcap=fields.optional_number("final_logit_softcapping"),
    )
    if architecture == "gemma3":
        return _gemma3(shared, fields)
    return _windowed(shared, fields)


def _architecture(fields: Fields) -> Architecture:
    name = fields.text("general.architecture")
    for architecture in ARCHITECTURES:
        if name == architecture:
            if fields.get(f"{name}.expert_count"):
                raise fields.fail(f"{name} with a mixture of experts is not supported")
            return architecture
    raise fields.fail(
        f"the architecture {shown(name)} is not supported; supported are {', '.join(ARCHITECTURES)}"
    )


def _head_dim(fields: Fields, hidden_size: int, num_heads: int) -> int:
    head_dim = fields.size("attention.key_length", max(hidden_size // num_heads, 1))
    value_dim = fields.size("attention.value_length", head_dim)
    if value_dim != head_dim:
        raise fields.fail(f"keys of {head_dim} and values of {value_dim} elements differ")
    return head_dim


def _windowed(config: ModelConfig, fields: Fields) -> ModelConfig:
    """llama (as mistral) and phi3 may state one window for all layers; qwen's is never used."""
    window = fields.optional_size("attention.sliding_window")
    if window is None or config.architecture not in ("llama", "phi3"):
        return config
    return dataclasses.replace(
        config, sliding_window=window, window_layers=(True,) * config.num_layers
    )


def _gemma3(config: ModelConfig, fields: Fields) -> ModelConfig:
    pattern = fields.get("attention.sliding_window_pattern")
    if isinstance(pattern, memoryview):
        windows = tuple(bool(window) for window in pattern)
    else:
        period = fields.size("attention.sliding_window_pattern", GEMMA3_WINDOW_PERIOD)
        windows = window_layers(config.num_layers, period)
    theta = fields.number("rope.freq_base_swa", _LOCAL_ROPE_THETA)
    scale_dim = config.head_dim
    if config.num_layers == _GEMMA3_27B_LAYERS:  # Its query_pre_attn_scalar is not in the file.
        scale_dim = config.hidden_size // config.num_query_heads
    return dataclasses.replace(
        config,
        sliding_window=fields.size("attention.sliding_window"),
        window_layers=windows,
        rope_local=RopeConfig(theta=theta, rotary_dim=config.rope.rotary_dim),
        attention_scale=scale_dim**-0.5,
        embedding_scale=float(np.float32(math.sqrt(config.hidden_size))),
        activation="gelu_tanh",
    )


def _rope(
    fields: Fields, architecture: Architecture, head_dim: int, tensors: TensorTable
) -> RopeConfig:
    base = RopeConfig(
        theta=fields.number("rope.freq_base", 10_000.0),
        rotary_dim=fields.size("rope.dimension_count", head_dim),
        interleaved=architecture == "llama",
        freq_factors=_factors(tensors, ROPE_FREQS),
        short_factors=_factors(tensors, ROPE_SHORT),
        long_factors=_factors(tensors, ROPE_LONG),
    )
    # Files from before scaling types existed have scale_linear alone.
    old_factor = fields.optional_number("rope.scale_linear")
    factor = fields.optional_number("rope.scaling.factor") or old_factor or 1.0
    trained = fields.size("context_length")
    original = fields.size("rope.scaling.original_context_length", trained)
    default = "longrope" if base.long_factors else "linear" if old_factor else "none"
    kind = fields.text("rope.scaling.type", default)
    if kind == "none":
        return base
    if kind == "linear":
        return dataclasses.replace(base, scaling="linear", factor=factor)
    if kind == "longrope":
        return _longrope(base, fields, trained / original, original)
    if kind == "yarn":
        return _yarn(base, fields, factor, original)
    raise fields.fail(
        f"the rope scaling {shown(kind)} is not supported; supported are none, linear, yarn, "
        f"longrope"
    )


def _longrope(base: RopeConfig, fields: Fields, factor: float, original: int) -> RopeConfig:
    return dataclasses.replace(
        base,
        scaling="longrope",
        factor=factor,
        original_max_positions=original,
        attention_factor=fields.optional_number("rope.scaling.attn_factor"),
    )


def _yarn(base: RopeConfig, fields: Fields, factor: float, original: int) -> RopeConfig:
    own = fields.optional_number("rope.scaling.attn_factor")
    attention_factor = None
    if own is not None:  # GGUF's multiplies the formula's value, ours replaces it.
        attention_factor = own * (1.0 + 0.1 * math.log(max(factor, 1.0)))
    return dataclasses.replace(
        base,
        scaling="yarn",
        factor=factor,
        original_max_positions=original,
        attention_factor=attention_factor,
        beta_fast=fields.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=fields.number("rope.scaling.yarn_beta_slow", 1.0),
    )


def _factors(tensors: TensorTable, name: str) -> tuple[float, ...]:
    """The divisors of the inverse frequencies that a small float32 tensor holds."""
    if name not in tensors:
        return ()
    info = tensors.info(name)
    fields = Fields({}, info.file.path)
    if info.type is not TensorType.F32 or len(info.shape) != 1 or info.shape[0] > _MAX_ROPE_FACTORS:
        raise fields.fail(
            f"the tensor {name!r} is {info.type.name} of shape {list(info.shape)}, not a short "
            f"list of F32"
        )
    values = tensors.tensor(name).data.view(np.float32)
    if not (np.isfinite(values).all() and (values > 0).all()):
        raise fields.fail(f"the tensor {name!r} holds numbers that are not above 0 and finite")
    return tuple(float(value) for value in values)
