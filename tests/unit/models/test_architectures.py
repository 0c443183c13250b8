"""The operations and weights that each architecture names."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from tools.tiny_configs import tiny_config, variant_config

from kokuban.core.errors import ModelError
from kokuban.core.model_config import ModelConfig, RopeConfig
from kokuban.models.registry import ARCHITECTURES, build_program
from kokuban.program.check import weights_of, writes
from kokuban.program.ops import Attention, Embed, GatedActivation, Linear, RmsNorm, Rope, Softcap


def layer_weights(config: ModelConfig) -> set[str]:
    """What layer 0 reads, without the prefix."""
    names = build_program(config).weights
    return {name.removeprefix("blk.0.") for name in names if name.startswith("blk.0.")}


LLAMA = {
    "attn_norm.weight",
    "attn_q.weight",
    "attn_k.weight",
    "attn_v.weight",
    "attn_output.weight",
    "ffn_norm.weight",
    "ffn_gate.weight",
    "ffn_up.weight",
    "ffn_down.weight",
}
HEAD_NORMS = {"attn_q_norm.weight", "attn_k_norm.weight"}


def test_each_architecture_reads_the_tensors_of_its_files() -> None:
    assert layer_weights(tiny_config("llama")) == LLAMA
    biases = {"attn_q.bias", "attn_k.bias", "attn_v.bias"}
    assert layer_weights(tiny_config("qwen2")) == LLAMA | biases
    assert layer_weights(tiny_config("qwen3")) == LLAMA | HEAD_NORMS
    post_norms = {"post_attention_norm.weight", "post_ffw_norm.weight"}
    assert layer_weights(tiny_config("gemma3")) == LLAMA | HEAD_NORMS | post_norms
    assert layer_weights(tiny_config("phi3")) == {
        "attn_norm.weight",
        "attn_qkv.weight",
        "attn_output.weight",
        "ffn_norm.weight",
        "ffn_up.weight",
        "ffn_down.weight",
    }


def test_joined_projections_have_the_rows_of_their_parts() -> None:
    weights = build_program(tiny_config("phi3")).weights

    assert weights["blk.0.attn_qkv.weight"].shape == (256 + 2 * 64, 256)
    assert weights["blk.0.ffn_up.weight"].shape == (1024, 256)


def test_one_product_computes_q_k_and_v_and_one_gate_and_up() -> None:
    program = build_program(tiny_config("llama"))

    first_layer = [op.weights for op in program.body if isinstance(op, Linear)][:4]

    assert first_layer == [
        ("blk.0.attn_q.weight", "blk.0.attn_k.weight", "blk.0.attn_v.weight"),
        ("blk.0.attn_output.weight",),
        ("blk.0.ffn_gate.weight", "blk.0.ffn_up.weight"),
        ("blk.0.ffn_down.weight",),
    ]


def test_all_layers_share_a_few_buffers() -> None:
    program = build_program(tiny_config("gemma3"))

    roots = {value.parent or value for op in program.body for value in writes(op)}

    names = {"h", "normed", "qkv", "attn_out", "proj", "gate_up", "act"}
    assert {value.name for value in roots} == names


def test_qwen2_norms_no_heads_and_qwen3_has_no_biases_whatever_the_config_says() -> None:
    assert build_program(replace(tiny_config("qwen2"), qkv_bias=False)).weights.keys() == (
        build_program(tiny_config("qwen2")).weights.keys()
    )
    assert build_program(replace(tiny_config("qwen3"), qk_norm=False)).weights.keys() == (
        build_program(tiny_config("qwen3")).weights.keys()
    )


def test_gemma_rotates_window_layers_by_the_local_base_and_the_sixth_by_the_global_one() -> None:
    """Bug bank B77: one base for all layers, or a pattern that is off by one."""
    program = build_program(tiny_config("gemma3"))

    thetas = [program.rope_tables[op.table].theta for op in program.body if isinstance(op, Rope)]
    windows = [op.window for op in program.body if isinstance(op, Attention)]

    assert thetas == [1e4, 1e4, 1e4, 1e4, 1e4, 1e6]
    assert windows == [24, 24, 24, 24, 24, None]


def test_gemma_scales_its_embedding_norms_both_sides_and_caps_its_logits() -> None:
    program = build_program(variant_config("gemma3_scaled"))

    [h] = writes(program.body[0])
    assert program.body[0] == Embed("token_embd.weight", h, 16.0)
    counts = Counter(type(op) for op in program.body)
    assert counts[RmsNorm] == 6 * 6 + 1
    assert {op.kind for op in program.body if isinstance(op, GatedActivation)} == {"gelu_tanh"}
    assert program.head[-1] == Softcap(program.logits, 8.0)


def test_an_explicit_head_dim_is_used() -> None:
    """Bug bank B73: 12 heads of 64 on a hidden state of 256."""
    weights = build_program(variant_config("qwen3_wide")).weights

    assert weights["blk.0.attn_q.weight"].shape == (768, 256)
    assert weights["blk.0.attn_output.weight"].shape == (256, 768)


def test_an_untied_head_is_a_tensor_of_its_own() -> None:
    """Bug bank B74."""
    assert weights_of(build_program(tiny_config("llama")).head[1]) == ("output.weight",)
    tied = replace(tiny_config("llama"), tied_embeddings=True)
    assert weights_of(build_program(tied).head[1]) == ("token_embd.weight",)


def test_an_unknown_architecture_is_refused_with_the_known_ones() -> None:
    config = replace(tiny_config("llama"), architecture="mamba")  # type: ignore[arg-type]

    with pytest.raises(ModelError, match="'mamba' is none of gemma3, llama, phi3, qwen2, qwen3"):
        build_program(config)
    assert list(ARCHITECTURES) == sorted(ARCHITECTURES)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"num_query_heads": 6, "num_kv_heads": 4}, "num_query_heads=6 is no multiple of .*=4"),
        ({"num_layers": 0}, "num_layers=0 is below 1"),
        ({"window_layers": (True,)}, "window_layers has 1 entries for 3 layers"),
        ({"window_layers": (True,) * 3}, "need a sliding_window of 1 or more, not None"),
        ({"rope": RopeConfig(rotary_dim=33)}, "rotary_dim=33 is no even number from 2 to .*=32"),
        ({"rope": RopeConfig(rotary_dim=34)}, "rotary_dim=34 is no even number from 2 to .*=32"),
        (
            {"rope": RopeConfig(rotary_dim=32, freq_factors=(1.0,))},
            "freq_factors has 1 entries for 16 frequencies",
        ),
        (
            {"rope": RopeConfig(rotary_dim=32, scaling="yarn", factor=2.0)},
            "yarn needs original_max_positions of 2 or more, not 0",
        ),
        (
            {
                "rope": RopeConfig(
                    rotary_dim=32,
                    scaling="longrope",
                    original_max_positions=1,
                    short_factors=(1.0,) * 16,
                    long_factors=(1.0,) * 15 + (1e-300,),
                )
            },
            "needs original_max_positions of 2 or more, not 1; long_factors has 1e-300, which is "
            "below 1e-09",
        ),
        ({"rope": RopeConfig(rotary_dim=32, theta=1.0)}, "theta=1.0 is not above 1 and up to 1e"),
        ({"rope": RopeConfig(rotary_dim=32, theta=1e300)}, "theta=1e.300 is not above 1 and up to"),
        (
            {"rope": RopeConfig(rotary_dim=32, factor=1e-300, beta_fast=1e300)},
            "factor=1e-300 is not from 1e-09 to 1e.09; beta_fast=1e.300 is not from",
        ),
        (
            {
                "rope": RopeConfig(
                    rotary_dim=32, scaling="llama3", original_max_positions=8, low_freq_factor=4.0
                )
            },
            "low_freq_factor=4.0 is not below high_freq_factor=4.0",
        ),
        (
            {"rope": RopeConfig(rotary_dim=32, scaling="longrope", original_max_positions=8)},
            "longrope needs short_factors and long_factors",
        ),
    ],
)
def test_contradictions_of_a_config_are_named(changes: dict[str, Any], error: str) -> None:
    with pytest.raises(ModelError, match=error):
        build_program(replace(tiny_config("llama"), **changes))


def test_all_contradictions_are_named_at_once() -> None:
    config = replace(tiny_config("llama"), num_layers=0, hidden_size=-1)

    with pytest.raises(ModelError, match=r"num_layers=0 is below 1; hidden_size=-1 is below 1"):
        build_program(config)
