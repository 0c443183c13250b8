"""GGUF settings to ModelConfig, as each family's converter means them."""

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from tests.unit.weights.small_models import f32, rename_architecture, small_gguf

from kokuban.core.errors import ModelError
from kokuban.core.model_config import ModelConfig, RopeConfig
from kokuban.weights.gguf_write import WriteValue
from kokuban.weights.mapped import WeightTensor
from kokuban.weights.source import open_source


def config_of(
    directory: Path, changes: Mapping[str, WriteValue] | None = None, *tensors: WeightTensor
) -> ModelConfig:
    return open_source(small_gguf(directory, changes, *tensors)).config


def test_a_llama_file_rotates_interleaved_pairs(tmp_path: Path) -> None:
    """Keeps B68 out: docs/bugbank.md."""
    assert config_of(tmp_path) == ModelConfig(
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
        rope=RopeConfig(theta=500_000.0, rotary_dim=12, interleaved=True),
        tied_embeddings=True,
        attention_scale=12**-0.5,
    )


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "phi3"])
def test_other_families_rotate_halves(tmp_path: Path, architecture: str) -> None:
    """Keeps B68 out: docs/bugbank.md."""
    config = config_of(tmp_path, rename_architecture(architecture))

    assert config.architecture == architecture
    assert not config.rope.interleaved


def test_the_stated_head_size_wins_over_the_quotient(tmp_path: Path) -> None:
    """Keeps B73 out: docs/bugbank.md."""
    sizes = {"llama.attention.key_length": 32, "llama.attention.value_length": 32}

    config = config_of(tmp_path, sizes)

    assert config.head_dim == 32
    assert config.rope.rotary_dim == 32
    assert config.attention_scale == 32**-0.5


def test_an_output_matrix_means_that_embeddings_are_not_tied(tmp_path: Path) -> None:
    assert not config_of(tmp_path, None, f32("output.weight", 10, 48)).tied_embeddings


def test_biases_and_head_norms_are_found_by_their_tensors(tmp_path: Path) -> None:
    tensors = f32("blk.0.attn_q.bias", 48), f32("blk.0.attn_q_norm.weight", 12)

    config = config_of(tmp_path, rename_architecture("qwen2"), *tensors)

    assert config.qkv_bias
    assert config.qk_norm


def test_gemma3_is_completed_as_its_converter_means_it(tmp_path: Path) -> None:
    changes = rename_architecture("gemma3") | {
        "gemma3.block_count": 8,
        "gemma3.attention.sliding_window": 32,
        "gemma3.rope.scaling.type": "linear",
        "gemma3.rope.scaling.factor": 8.0,
    }

    config = config_of(tmp_path, changes)

    assert config.window_layers == (True, True, True, True, True, False, True, True)
    assert config.sliding_window == 32
    assert (config.rope.scaling, config.rope.factor) == ("linear", 8.0)
    assert config.rope_local == RopeConfig(theta=10_000.0, rotary_dim=12)
    assert config.embedding_scale == float(np.float32(math.sqrt(48)))
    assert config.norm_weight_offset == 0
    assert config.activation == "gelu_tanh"
    assert config.attention_scale == 12**-0.5


def test_the_27b_gemma3_scales_by_hidden_size_over_heads(tmp_path: Path) -> None:
    changes = rename_architecture("gemma3") | {
        "gemma3.block_count": 62,
        "gemma3.attention.sliding_window": 32,
        "gemma3.attention.key_length": 16,
        "gemma3.attention.value_length": 16,
    }

    assert config_of(tmp_path, changes).attention_scale == 12**-0.5


def test_phi3_and_mistral_files_may_state_a_window_for_all_layers(tmp_path: Path) -> None:
    changes = rename_architecture("phi3") | {"phi3.attention.sliding_window": 64}

    config = config_of(tmp_path, changes)

    assert (config.sliding_window, config.window_layers) == (64, (True, True))


def test_yarn_extends_the_context_and_multiplies_its_own_factor(tmp_path: Path) -> None:
    changes: dict[str, WriteValue] = {
        "llama.rope.scaling.type": "yarn",
        "llama.rope.scaling.factor": 4.0,
        "llama.rope.scaling.original_context_length": 128,
        "llama.rope.scaling.attn_factor": 0.5,
        "llama.rope.scaling.yarn_beta_fast": 16.0,
    }

    config = config_of(tmp_path, changes)

    assert config.max_positions == 512
    assert config.rope.scaling == "yarn"
    assert config.rope.original_max_positions == 128
    assert config.rope.attention_factor == 0.5 * (1 + 0.1 * math.log(4))
    assert (config.rope.beta_fast, config.rope.beta_slow) == (16, 1)


def test_yarn_without_a_factor_of_its_own_leaves_the_formula(tmp_path: Path) -> None:
    changes: dict[str, WriteValue] = {
        "llama.rope.scaling.type": "yarn",
        "llama.rope.scaling.factor": 4.0,
    }

    assert config_of(tmp_path, changes).rope.attention_factor is None


def test_a_tensor_of_frequencies_is_read(tmp_path: Path) -> None:
    factors = np.array([1, 1, 2, 4, 8, 8], "<f4")
    tensor = f32("rope_freqs.weight", 6)
    tensor.data[:] = factors.view(np.uint8)

    rope = config_of(tmp_path, None, tensor).rope

    assert rope.freq_factors == (1, 1, 2, 4, 8, 8)
    assert rope.scaling == "none"


def test_longrope_is_recognised_by_its_tensors(tmp_path: Path) -> None:
    tensors = f32("rope_factors_long.weight", 6), f32("rope_factors_short.weight", 6)
    for tensor in tensors:
        tensor.data[:] = np.full(6, 2, "<f4").view(np.uint8)
    changes = rename_architecture("phi3") | {
        "phi3.context_length": 512,
        "phi3.rope.scaling.original_context_length": 128,
        "phi3.rope.scaling.attn_factor": 1.25,
    }

    rope = config_of(tmp_path, changes, *tensors).rope

    assert rope.scaling == "longrope"
    assert (rope.factor, rope.original_max_positions, rope.attention_factor) == (4, 128, 1.25)
    assert rope.long_factors == rope.short_factors == (2.0,) * 6


def test_a_count_for_each_layer_must_be_the_same_in_all(tmp_path: Path) -> None:
    assert config_of(tmp_path, {"llama.attention.head_count_kv": [2, 2]}).num_kv_heads == 2
    with pytest.raises(ModelError, match=r"head_count_kv is .* not the same in every layer"):
        _ = config_of(tmp_path, {"llama.attention.head_count_kv": [2, 4]})


FAULTS: Mapping[str, tuple[Mapping[str, WriteValue], str]] = {
    "unknown architecture": (
        {"general.architecture": "mamba"},
        "the architecture 'mamba' is not supported; supported are llama, qwen2, qwen3, phi3",
    ),
    "mixture of experts": ({"llama.expert_count": 8}, "a mixture of experts is not supported"),
    "text for a number": (
        {"llama.block_count": "two"},
        "llama.block_count is 'two', not a whole number from 1 to 1024",
    ),
    "zero": ({"llama.embedding_length": 0}, "llama.embedding_length is 0"),
    "absurd": ({"llama.block_count": 2**31}, "llama.block_count is 2147483648"),
    "not finite": ({"llama.rope.freq_base": float("inf")}, "llama.rope.freq_base is inf"),
    "keys and values differ": (
        {"llama.attention.key_length": 16, "llama.attention.value_length": 32},
        "keys of 16 and values of 32 elements differ",
    ),
    "unknown rope": (
        {"llama.rope.scaling.type": "spiral"},
        "the rope scaling 'spiral' is not supported; supported are none, linear, yarn, longrope",
    ),
}


@pytest.mark.parametrize(("changes", "problem"), FAULTS.values(), ids=FAULTS)
def test_impossible_settings_give_one_line_that_names_them(
    tmp_path: Path, changes: Mapping[str, WriteValue], problem: str
) -> None:
    with pytest.raises(ModelError) as caught:
        config_of(tmp_path, changes)

    assert problem in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path))


@pytest.mark.parametrize("values", [[0.0, 1], [float("nan"), 1]])
def test_frequency_factors_must_be_positive_numbers(tmp_path: Path, values: list[float]) -> None:
    tensor = f32("rope_freqs.weight", 2)
    tensor.data[:] = np.array(values, "<f4").view(np.uint8)

    with pytest.raises(ModelError, match=r"'rope_freqs\.weight' holds numbers that are not above"):
        config_of(tmp_path, None, tensor)
