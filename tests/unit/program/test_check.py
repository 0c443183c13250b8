"""Sizes that do not fit are refused with the operation's place and both sizes."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from tools.tiny_configs import VARIANTS, tiny_config, variant_config

from kokuban.core.errors import ModelError
from kokuban.core.model_config import RopeConfig
from kokuban.models.registry import build_program
from kokuban.program.check import check_program
from kokuban.program.ops import Add, Attention, KvWrite, Linear, Op, RmsNorm, Rope, TakeRows, Value
from kokuban.program.program import KvGroup, KvSpec, Program, WeightSpec

NARROW = Value("narrow", "T", 8)


def program_with(change: Callable[[Op], Op]) -> Program:
    """The tiny llama, each operation passed through `change`."""
    program = build_program(tiny_config("llama"))
    return replace(
        program,
        body=tuple(change(op) for op in program.body),
        head=tuple(change(op) for op in program.head),
    )


@pytest.mark.parametrize("variant", VARIANTS)
def test_programs_of_all_architectures_fit(variant: str) -> None:
    check_program(build_program(variant_config(variant)))


def narrow_norm(op: Op) -> Op:
    return replace(op, dim=100) if isinstance(op, RmsNorm) else op


def narrow_linear(op: Op) -> Op:
    return replace(op, out=NARROW) if isinstance(op, Linear) else op


def wrong_rotation(op: Op) -> Op:
    return replace(op, num_heads=9) if isinstance(op, Rope) else op


def unknown_table(op: Op) -> Op:
    return replace(op, table=1) if isinstance(op, Rope) else op


def narrow_k(op: Op) -> Op:
    return replace(op, k=replace(op.k, cols=32)) if isinstance(op, KvWrite) else op


def other_kv_heads(op: Op) -> Op:
    return replace(op, num_kv_heads=4) if isinstance(op, Attention) else op


def other_window(op: Op) -> Op:
    return replace(op, window=16) if isinstance(op, Attention) else op


def unknown_layer(op: Op) -> Op:
    return replace(op, layer=3) if isinstance(op, Attention) else op


def narrow_sum(op: Op) -> Op:
    return replace(op, b=NARROW) if isinstance(op, Add) else op


def rows_to_rows(op: Op) -> Op:
    return replace(op, out=replace(op.out, rows="T")) if isinstance(op, TakeRows) else op


def missing_weight(op: Op) -> Op:
    return replace(op, weight="blk.9.x") if isinstance(op, RmsNorm) else op


def unwritten_value(op: Op) -> Op:
    return replace(op, x=replace(op.x, name="lost")) if isinstance(op, Linear) else op


def view_past_the_end(op: Op) -> Op:
    return replace(op, v=replace(op.v, offset=350)) if isinstance(op, KvWrite) else op


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (narrow_norm, r"body\[1\] RmsNorm: weight 'blk.0.attn_norm.weight' is \[256\] .* \[100\]"),
        (narrow_linear, r"body\[2\] Linear: weights have 384 outputs, 'narrow' has 8 columns"),
        (wrong_rotation, r"body\[3\] Rope: 'qk' has 320 columns, 9 heads of 32 need 288"),
        (unknown_table, r"body\[3\] Rope: table 1 is none of 1"),
        (narrow_k, r"body\[4\] KvWrite: 'k' has 32 columns, 2 heads of 32 need 64"),
        (view_past_the_end, r"KvWrite: 'v' ends at column 414, but 'qkv' has 384"),
        (other_kv_heads, r"Attention: reads 4 KV heads of 32, the cache holds 2 of 32"),
        (other_window, r"body\[5\] Attention: window 16, but the KV group keeps None"),
        (unknown_layer, r"body\[5\] Attention: layer 3 is in no KV group"),
        (narrow_sum, r"Add: 'h' \(T × 256\) and 'narrow' \(T × 8\) must be equal"),
        (rows_to_rows, r"head\[0\] TakeRows: takes 'normed' \(T × 256\) to 'sampled' \(T × 256\)"),
        (missing_weight, r"RmsNorm: weight 'blk.9.x' is not declared"),
        (unwritten_value, r"body\[2\] Linear reads 'lost', which nothing has written"),
    ],
)
def test_the_error_names_the_operation_and_both_sizes(
    change: Callable[[Op], Op], error: str
) -> None:
    with pytest.raises(ModelError, match=error):
        check_program(program_with(change))


def test_a_rotation_wider_than_a_head_is_refused() -> None:
    program = build_program(tiny_config("llama"))

    with pytest.raises(ModelError, match="rotates 64 dimensions of heads of 32"):
        check_program(replace(program, rope_tables=(RopeConfig(rotary_dim=64),)))


def test_unlike_groups_are_refused() -> None:
    program = build_program(tiny_config("llama"))
    kv = KvSpec((KvGroup((0, 1)), KvGroup((2,))), 2, 32)

    with pytest.raises(ModelError, match="unlike numbers of layers"):
        check_program(replace(program, kv=kv))


def test_a_matrix_of_another_shape_is_refused() -> None:
    program = build_program(tiny_config("llama"))
    weights = dict(program.weights) | {"blk.1.ffn_down.weight": WeightSpec((256, 511))}

    with pytest.raises(ModelError, match=r"ffn_down.weight' is \[256, 511\] .* \[256, 512\]"):
        check_program(replace(program, weights=weights))
