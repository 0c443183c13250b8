"""A Hugging Face `config.json` becomes a `ModelConfig`.

Two generations of files are read: rotary settings as `rope_theta` and `rope_scaling` (transformers
4), or together in `rope_parameters` (transformers 5); the kind of scaling as `rope_type` or `type`.
Files leave out what equals the default of their configuration class, hence `_DEFAULTS`.

Source: the configuration classes and `modeling_rope_utils.py` of transformers 4.57.
"""

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from kokuban.core.model_config import Architecture, ModelConfig, RopeConfig
from kokuban.weights.config_shared import (
    GEMMA3_WINDOW_PERIOD,
    MAX_LAYERS,
    MAX_POSITIONS,
    reachable_positions,
    window_layers,
)
from kokuban.weights.fields import Fields, shown

ARCHITECTURE_OF: Mapping[str, Architecture] = {
    "llama": "llama",
    "mistral": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "phi3": "phi3",
    "gemma3": "gemma3",
    "gemma3_text": "gemma3",
}
"""Architecture for each `model_type`."""

_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "mistral": {"num_key_value_heads": 8, "sliding_window": 4096},
    "qwen3": {"head_dim": 128},
    "phi3": {"rms_norm_eps": 1e-5, "original_max_position_embeddings": 4096},
    "gemma3_text": {
        "vocab_size": 262_208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131_072,
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
        "sliding_window": 4096,
        "query_pre_attn_scalar": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
    },
}

_QWEN_FIRST_WINDOW_LAYER = 28

_ACTIVATIONS: Mapping[str, Literal["silu", "gelu_tanh", "relu"]] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}


def read_hf_config(values: Mapping[str, Any], path: Path) -> ModelConfig:
    """The model's numbers.

    Args:
        values: config.json, parsed.
        path: where it stands, for messages.

    Raises:
        ModelError: the architecture is not supported, or a setting is missing or impossible.
    """
    fields, model_type = _text_fields(values, path)
    for key in ("attention_bias", "mlp_bias"):
        if fields.flag(key, False):
            raise fields.fail(f"{key}=true is not supported")
    architecture = ARCHITECTURE_OF[model_type]
    num_heads = fields.size("num_attention_heads")
    hidden_size = fields.size("hidden_size")
    head_dim = fields.size("head_dim", max(hidden_size // num_heads, 1))
    rope = _rope(fields, _global_rope_settings(fields), head_dim)
    config = ModelConfig(
        architecture=architecture,
        name=path.resolve().parent.name,
        num_layers=fields.size("num_hidden_layers", most=MAX_LAYERS),
        hidden_size=hidden_size,
        intermediate_size=fields.size("intermediate_size"),
        num_query_heads=num_heads,
        num_kv_heads=fields.size("num_key_value_heads", num_heads),
        head_dim=head_dim,
        vocab_size=fields.size("vocab_size"),
        max_positions=reachable_positions(
            fields.size("max_position_embeddings", most=MAX_POSITIONS), rope
        ),
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
        rope=rope,
        tied_embeddings=fields.flag("tie_word_embeddings", False),
        qkv_bias=model_type == "qwen2",
        qk_norm=architecture in ("qwen3", "gemma3"),
        attention_scale=head_dim**-0.5,
        activation=_activation(fields),
    )
    if architecture == "gemma3":
        return _gemma3(config, fields)
    return _windowed(config, fields, model_type)


def _text_fields(values: Mapping[str, Any], path: Path) -> tuple[Fields, str]:
    """The settings of the language model, defaults filled in, and its `model_type`."""
    outer = Fields(values, path)
    model_type = outer.text("model_type")
    if model_type not in ARCHITECTURE_OF:
        raise outer.fail(
            f"the model_type {shown(model_type)} is not supported; supported are "
            f"{', '.join(sorted(ARCHITECTURE_OF))}"
        )
    if model_type == "gemma3":
        nested = outer.get("text_config")
        if not isinstance(nested, dict):
            raise outer.wrong("text_config", "the settings of the language model")
        values, model_type = nested, "gemma3_text"
    if (quantization := values.get("quantization_config")) is not None:
        method = quantization.get("quant_method") if isinstance(quantization, dict) else None
        raise outer.fail(
            f"weights quantised by {shown(method)} are not supported; use a GGUF file, or the "
            f"original weights with --quantize"
        )
    stated = {key: value for key, value in values.items() if value is not None}
    if model_type == "mistral" and "sliding_window" in values:
        stated["sliding_window"] = values["sliding_window"]  # null means: no window.
    return Fields({**_DEFAULTS.get(model_type, {}), **stated}, path), model_type


def _activation(fields: Fields) -> Literal["silu", "gelu_tanh", "relu"]:
    name = fields.text("hidden_activation", fields.text("hidden_act", "silu"))
    if name not in _ACTIVATIONS:
        raise fields.fail(
            f"the activation {shown(name)} is not supported; supported are "
            f"{', '.join(_ACTIVATIONS)}"
        )
    return _ACTIVATIONS[name]


def _windowed(config: ModelConfig, fields: Fields, model_type: str) -> ModelConfig:
    """mistral and phi3 have the window in every layer, qwen from one layer on if it is in use."""
    window = fields.optional_size("sliding_window")
    windows = (True,) * config.num_layers
    if model_type in ("qwen2", "qwen3"):
        if not fields.flag("use_sliding_window", False):
            return config
        first = fields.size("max_window_layers", _QWEN_FIRST_WINDOW_LAYER)
        windows = tuple(layer >= first for layer in range(config.num_layers))
    if window is None or model_type == "llama" or not any(windows):
        return config
    return dataclasses.replace(config, sliding_window=window, window_layers=windows)


def _gemma3(config: ModelConfig, fields: Fields) -> ModelConfig:
    return dataclasses.replace(
        config,
        sliding_window=fields.size("sliding_window"),
        window_layers=_gemma3_windows(fields, config.num_layers),
        rope_local=_rope(fields, _local_rope_settings(fields), config.head_dim),
        attention_scale=fields.number("query_pre_attn_scalar") ** -0.5,
        embedding_scale=float(np.float32(math.sqrt(config.hidden_size))),
        attention_softcap=fields.optional_number("attn_logit_softcapping"),
        final_softcap=fields.optional_number("final_logit_softcapping"),
        norm_weight_offset=1.0,
    )


def _gemma3_windows(fields: Fields, num_layers: int) -> tuple[bool, ...]:
    kinds = fields.get("layer_types")
    if kinds is None:
        key = "_sliding_window_pattern"
        key = key if fields.get(key) is not None else "sliding_window_pattern"
        return window_layers(num_layers, fields.size(key, GEMMA3_WINDOW_PERIOD))
    names = {"sliding_attention": True, "full_attention": False}
    if not isinstance(kinds, list) or not all(
        isinstance(kind, str) and kind in names for kind in kinds
    ):
        raise fields.wrong("layer_types", f"a list of {' and '.join(names)}")
    return tuple(names[kind] for kind in kinds)


def _global_rope_settings(fields: Fields) -> Fields:
    """theta and scaling in one mapping, whichever generation the file is of."""
    parameters = fields.get("rope_parameters") or {}
    if not isinstance(parameters, dict):
        raise fields.wrong("rope_parameters", "a mapping")
    parameters = parameters.get("full_attention", parameters)
    scaling = fields.get("rope_scaling") or {}
    if not isinstance(scaling, dict) or not isinstance(parameters, dict):
        raise fields.wrong("rope_scaling", "a mapping or null")
    theta = {"rope_theta": fields.number("rope_theta", 10_000.0)}
    return Fields({**theta, **scaling, **parameters}, fields.path)


def _local_rope_settings(fields: Fields) -> Fields:
    parameters = fields.get("rope_parameters") or {}
    local = parameters.get("sliding_attention")
    if not isinstance(local, dict):
        local = {"rope_theta": fields.number("rope_local_base_freq")}
    return Fields(local, fields.path)


def _rope(fields: Fields, settings: Fields, head_dim: int) -> RopeConfig:
    partial = settings.number("partial_rotary_factor", fields.number("partial_rotary_factor", 1.0))
    if partial > 1:
        raise fields.fail(f"partial_rotary_factor is {shown(partial)}, not a number up to 1")
    base = RopeConfig(
        theta=settings.number("rope_theta", 10_000.0), rotary_dim=int(head_dim * partial)
    )
    kind = settings.text("rope_type", settings.text("type", "default"))
    builder = _SCALINGS.get(kind)
    if builder is None:
        raise fields.fail(
            f"the rope type {shown(kind)} is not supported; supported are {', '.join(_SCALINGS)}"
        )
    return builder(base, fields, settings)


def _unscaled(base: RopeConfig, fields: Fields, settings: Fields) -> RopeConfig:
    del fields, settings
    return base


def _linear(base: RopeConfig, fields: Fields, settings: Fields) -> RopeConfig:
    del fields
    return dataclasses.replace(base, scaling="linear", factor=settings.number("factor"))


def _llama3(base: RopeConfig, fields: Fields, settings: Fields) -> RopeConfig:
    del fields
    return dataclasses.replace(
        base,
        scaling="llama3",
        factor=settings.number("factor"),
        low_freq_factor=settings.number("low_freq_factor"),
        high_freq_factor=settings.number("high_freq_factor"),
        original_max_positions=settings.size("original_max_position_embeddings"),
    )


def _yarn(base: RopeConfig, fields: Fields, settings: Fields) -> RopeConfig:
    if not settings.flag("truncate", True):
        raise fields.fail("yarn with truncate=false is not supported")
    factor = settings.number("factor")
    attention_factor = settings.optional_number("attention_factor")
    mscale = settings.optional_number("mscale")
    all_dims = settings.optional_number("mscale_all_dim")
    if attention_factor is None and mscale and all_dims and factor > 1:
        log = 0.1 * math.log(factor)
        attention_factor = (mscale * log + 1) / (all_dims * log + 1)
    original = settings.optional_size("original_max_position_embeddings")
    return dataclasses.replace(
        base,
        scaling="yarn",
        factor=factor,
        original_max_positions=original or fields.size("max_position_embeddings"),
        attention_factor=attention_factor,
        beta_fast=settings.number("beta_fast", 32.0),
        beta_slow=settings.number("beta_slow", 1.0),
    )


def _longrope(base: RopeConfig, fields: Fields, settings: Fields) -> RopeConfig:
    stated = fields.size("max_position_embeddings")
    original = settings.optional_size("original_max_position_embeddings")
    original = original or fields.size("original_max_position_embeddings", stated)
    return dataclasses.replace(
        base,
        scaling="longrope",
        factor=stated / original,
        original_max_positions=original,
        attention_factor=settings.optional_number("attention_factor"),
        short_factors=settings.numbers("short_factor"),
        long_factors=settings.numbers("long_factor"),
    )


_SCALINGS = {
    "default": _unscaled,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "su": _longrope,
}
"""Builder for each rope type; `su` is what phi3 files called longrope at first."""
