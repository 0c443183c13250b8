"""What int8 leaves out of K is the bias, where the rotary embedding hardly turns it."""

from dataclasses import replace

import numpy as np
import pytest
from tools.tiny_configs import tiny_config

from kokuban.models.registry import build_program
from kokuban.program.ops import Attention
from kokuban.program.program import Program
from kokuban.program.rope import inverse_frequencies
from kokuban.runner.key_offsets import key_offsets


def biased(program: Program) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(4)
    return {
        name: rng.standard_normal(spec.shape).astype(np.float32)
        for name, spec in program.weights.items()
        if name.endswith("bias")
    }


def test_each_layer_leaves_out_its_own_bias_in_the_slow_dimensions() -> None:
    program = build_program(tiny_config("qwen2"))
    vectors = biased(program)
    [table] = program.rope_tables
    slow = np.array(inverse_frequencies(table, 1024)[0]) * 8192 <= 0.5

    found = key_offsets(program, vectors, 1024)

    assert sorted(found) == list(range(program.kv.num_layers))
    for layer, offset in found.items():
        bias = vectors[f"blk.{layer}.attn_k.bias"].reshape(-1, program.kv.head_dim)
        expected = np.where(np.tile(slow, 2), bias, 0)
        assert np.array_equal(offset.reshape(expected.shape), expected)


@pytest.mark.parametrize("variant", ["llama", "qwen3", "gemma3"])
def test_models_without_a_bias_on_k_leave_nothing_out(variant: str) -> None:
    program = build_program(tiny_config(variant))

    assert key_offsets(program, biased(program), 1024) == {}


def test_a_softcap_sees_a_shift_of_all_scores_and_so_nothing_is_left_out() -> None:
    program = build_program(tiny_config("qwen2"))
    body = tuple(
        replace(op, softcap=30.0) if isinstance(op, Attention) else op for op in program.body
    )

    assert key_offsets(replace(program, body=body), biased(program), 1024) == {}
