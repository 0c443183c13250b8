"""config.json to ModelConfig, in both generations of the format."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.unit.weights.small_models import HF_LLAMA

from kokuban.core.errors import ModelError
from kokuban.core.model_config import ModelConfig, RopeConfig
from kokuban.weights.config_hf import read_hf_config

PATH = Path("models/tiny/config.json")


def config_of(**changes: Any) -> ModelConfig:
    return read_hf_config({**HF_LLAMA, **changes}, PATH)


def test_a_llama_config_rotates_halves() -> None:
    assert config_of() == ModelConfig(
        architecture="llama",
        name="tiny",
        num_layers=2,
        hidden_size=48,
        intermediate_size=96,
        num_query_heads=4,
        num_kv_heads=2,
        head_dim=12,
        vocab_size=10,
        max_positions=128,
        rms_norm_eps=0.5,
        rope=RopeConfig(theta=500_000.0, rotary_dim=12),
        attention_scale=12**-0.5,
    )


def test_the_stated_head_size_wins_over_the_quotient() -> None:
    """Keeps B73 out: docs/bugbank.md."""
    assert config_of(head_dim=32).head_dim == 32
    assert config_of(hidden_size=50, head_dim=16).head_dim == 16


def test_null_is_as_good_as_absent() -> None:
    assert config_of(head_dim=None, num_key_value_heads=None).num_kv_heads == 4


@pytest.mark.parametrize(
    ("model_type", "qkv_bias", "qk_norm"),
    [("mistral", False, False), ("qwen2", True, False), ("qwen3", False, True)],
)
def test_each_family_has_its_biases_and_norms(
    model_type: str, qkv_bias: bool, qk_norm: bool
) -> None:
    config = config_of(model_type=model_type)

    assert (config.qkv_bias, config.qk_norm) == (qkv_bias, qk_norm)


def test_what_files_leave_out_is_the_default_of_their_class() -> None:
    assert config_of(model_type="qwen3").head_dim == 128
    assert (
        config_of(
            model_type="mistral",
            num_key_value_heads=None,
            num_attention_heads=8,
        ).num_kv_heads
        == 8
    )
    assert config_of(model_type="mistral").sliding_window == 4096
    assert config_of(model_type="phi3", rms_norm_eps=None).rms_norm_eps == 1e-5


def test_a_window_of_null_is_no_window() -> None:
    config = config_of(model_type="mistral", sliding_window=None)

    assert (config.sliding_window, config.window_layers) == (None, ())


def test_mistral_and_phi3_have_the_window_in_every_layer() -> None:
    for model_type in ("mistral", "phi3"):
        config = config_of(model_type=model_type, sliding_window=32)

        assert (config.sliding_window, config.window_layers) == (32, (True, True))


def test_qwen_has_a_window_only_where_it_is_in_use() -> None:
    unused = config_of(model_type="qwen2", sliding_window=32, use_sliding_window=False)
    used = config_of(
        model_type="qwen2", sliding_window=32, use_sliding_window=True, max_window_layers=1
    )

    assert unused.sliding_window is None
    assert (used.sliding_window, used.window_layers) == (32, (False, True))


GEMMA3 = {
    "num_hidden_layers": 7,
    "hidden_size": 48,
    "intermediate_size": 96,
    "sliding_window": 32,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
}


def test_a_nested_gemma3_config_is_completed_with_defaults() -> None:
    values = {"model_type": "gemma3", "text_config": {**GEMMA3, "model_type": "gemma3_text"}}

    config = read_hf_config(values, PATH)

    assert config.window_layers == (True, True, True, True, True, False, True)
    assert (config.num_query_heads, config.num_kv_heads, config.head_dim) == (8, 4, 256)
    assert config.rope == RopeConfig(
        theta=1_000_000.0, rotary_dim=256, scaling="linear", factor=8.0
    )
    assert config.rope_local == RopeConfig(theta=10_000.0, rotary_dim=256)
    assert config.attention_scale == 256**-0.5
    assert config.norm_weight_offset == 1
    assert config.activation == "gelu_tanh"
    assert config.tied_embeddings
    assert config.vocab_size == 262_208


def test_gemma3_layer_types_and_rope_parameters_of_the_new_format() -> None:
    values = {
        **GEMMA3,
        "model_type": "gemma3_text",
        "num_hidden_layers": 2,
        "layer_types": ["full_attention", "sliding_attention"],
        "rope_scaling": None,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 70.0},
        },
        "query_pre_attn_scalar": 16,
        "final_logit_softcapping": 30.0,
    }

    config = read_hf_config(values, PATH)

    assert config.window_layers == (False, True)
    assert (config.rope.theta, config.rope.factor) == (500.0, 2.0)
    assert config.rope_local == RopeConfig(theta=70.0, rotary_dim=256)
    assert config.attention_scale == 0.25
    assert (config.attention_softcap, config.final_softcap) == (None, 30.0)


@pytest.mark.parametrize("key", ["rope_type", "type"])
def test_llama3_scaling_in_both_spellings(key: str) -> None:
    """Keeps B75 out: docs/bugbank.md."""
    scaling = {
        key: "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }

    assert config_of(rope_scaling=scaling).rope == RopeConfig(
        theta=500_000.0,
        rotary_dim=12,
        scaling="llama3",
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_positions=64,
    )


def test_rope_parameters_hold_theta_in_the_new_format() -> None:
    values = {key: value for key, value in HF_LLAMA.items() if key != "rope_theta"}

    config = read_hf_config(
        {**values, "rope_parameters": {"rope_type": "default", "rope_theta": 77.0}}, PATH
    )

    assert config.rope.theta == 77.0


def test_yarn_takes_the_context_as_original_and_extends_it() -> None:
    config = config_of(rope_scaling={"rope_type": "yarn", "factor": 4.0})

    assert config.rope.original_max_positions == 128
    assert config.rope.attention_factor is None
    assert config.max_positions == 512


def test_yarn_extends_no_context_beyond_what_tables_have_room_for() -> None:
    scaling = {"rope_type": "yarn", "factor": 1e308}

    assert config_of(rope_scaling=scaling).max_positions == 2**24


def test_yarn_with_both_mscales_has_their_quotient_as_factor() -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 0.5}

    rope = config_of(rope_scaling=scaling).rope

    log = 0.1 * math.log(4)
    assert rope.attention_factor == (log + 1) / (0.5 * log + 1)


@pytest.mark.parametrize("kind", ["longrope", "su"])
def test_longrope_of_phi3(kind: str) -> None:
    scaling = {"type": kind, "short_factor": [1.0] * 4, "long_factor": [2] * 4}

    config = config_of(
        model_type="phi3",
        rope_scaling=scaling,
        original_max_position_embeddings=32,
        partial_rotary_factor=0.75,
    )

    assert config.rope == RopeConfig(
        theta=500_000.0,
        rotary_dim=9,
        scaling="longrope",
        factor=4.0,
        original_max_positions=32,
        short_factors=(1.0,) * 4,
        long_factors=(2.0,) * 4,
    )


FAULTS: Mapping[str, tuple[dict[str, Any], str]] = {
    "unknown model": (
        {"model_type": "mamba"},
        "the model_type 'mamba' is not supported; supported are gemma3, gemma3_text, llama",
    ),
    "no model type": ({"model_type": None}, "the setting model_type is missing"),
    "missing size": ({"hidden_size": None}, "the setting hidden_size is missing"),
    "negative": ({"num_hidden_layers": -1}, "num_hidden_layers is -1, not a whole number from 1"),
    "true": ({"num_attention_heads": True}, "num_attention_heads is True, not a whole number"),
    "text": ({"rms_norm_eps": "small"}, "rms_norm_eps is 'small', not a number"),
    "activation": (
        {"hidden_act": "quick_gelu"},
        "the activation 'quick_gelu' is not supported; supported are silu, swish, "
        "gelu_pytorch_tanh, relu",
    ),
    "dynamic rope": (
        {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
        "the rope type 'dynamic' is not supported; supported are default, linear, llama3, yarn",
    ),
    "rope without a factor": (
        {"rope_scaling": {"rope_type": "linear"}},
        "the setting factor is missing",
    ),
    "rope that is a list": ({"rope_scaling": [1]}, "rope_scaling is [1], not a mapping"),
    "rope parameters that are a list": ({"rope_parameters": [1]}, "rope_parameters is [1]"),
    "bias": ({"attention_bias": True}, "attention_bias=true is not supported"),
    "tied as text": ({"tie_word_embeddings": "yes"}, "is 'yes', not true or false"),
    "quantised by others": (
        {"quantization_config": {"quant_method": "awq"}},
        "weights quantised by 'awq' are not supported; use a GGUF file",
    ),
    "text_config that is none": ({"model_type": "gemma3"}, "text_config is None, not the settings"),
    "layer types": (
        {**GEMMA3, "model_type": "gemma3_text", "layer_types": ["linear_attention"]},
        "layer_types is ['linear_attention'], not a list of sliding_attention and full_attention",
    ),
    "layer types that are lists": (
        {**GEMMA3, "model_type": "gemma3_text", "layer_types": [["full_attention"]]},
        "layer_types is [['full_attention']], not a list of",
    ),
    "number that no float holds": ({"rope_theta": 10**400}, "not a finite number above 0"),
    "factor that no float holds": (
        {"rope_scaling": {"type": "longrope", "short_factor": [10**400], "long_factor": [1]}},
        "not a list of finite numbers above 0",
    ),
    "more than all of a head": (
        {"partial_rotary_factor": 1e308},
        "partial_rotary_factor is 1e+308, not a number up to 1",
    ),
    "endless context": (
        {"max_position_embeddings": 2**30},
        "max_position_embeddings is 1073741824, not a whole number from 1 to 16777216",
    ),
}


@pytest.mark.parametrize(("changes", "problem"), FAULTS.values(), ids=FAULTS)
def test_impossible_settings_give_one_line_that_names_them(
    changes: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ModelError) as caught:
        config_of(**changes)

    assert problem in str(caught.value)
    assert str(caught.value).startswith(str(PATH))
