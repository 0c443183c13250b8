"""What needs no other token moves behind the choice of rows; nothing else changes."""

from dataclasses import replace

import pytest
from tools.tiny_configs import VARIANTS, tiny_config, variant_config

from kokuban.models.registry import build_program
from kokuban.program.check import check_program, weights_of
from kokuban.program.cost import ChunkShape, program_costs, summarize, uniform_weight_bytes
from kokuban.program.fuse import take_rows_early
from kokuban.program.ops import Add, Attention, Linear, Softcap, TakeRows, Value
from kokuban.program.program import Program


def linear_flops(program: Program, num_tokens: int, num_rows: int) -> int:
    step = summarize([ChunkShape(0, num_tokens, num_rows)], program.kv)
    weights = uniform_weight_bytes(program, 32)
    costs = program_costs(program, step, weight_bytes=weights, kv_dtype="fp32")
    return sum(cost.flops for _, cost in costs if cost.kind in ("linear", "head"))


def test_the_body_ends_with_the_last_attention() -> None:
    program = build_program(tiny_config("llama"))

    early = take_rows_early(program)

    last = max(i for i, op in enumerate(program.body) if isinstance(op, Attention))
    assert early.body == program.body[: last + 1]


def test_the_head_takes_what_the_rest_of_the_layer_reads() -> None:
    program = build_program(tiny_config("llama"))
    attention = next(op for op in program.body if isinstance(op, Attention))

    early = take_rows_early(program)

    attended = Value("attn_out.sampled", "R", attention.out.cols)
    program_h, hidden = (
        Value(name, rows, program.hidden.cols) for name, rows in (("h", "T"), ("h.sampled", "R"))
    )
    assert early.head[:2] == (TakeRows(attention.out, attended), TakeRows(program_h, hidden))
    assert isinstance(early.head[2], Linear)
    assert early.head[2].x == attended
    assert next(op for op in early.head if isinstance(op, Add)).out == hidden


def test_columns_of_a_value_stay_columns_of_its_twin() -> None:
    early = take_rows_early(build_program(tiny_config("llama")))

    gated = next(op for op in early.head if type(op).__name__ == "GatedActivation")

    assert gated.gate.parent == gated.up.parent
    assert gated.up.offset == gated.gate.cols
    assert {gated.gate.rows, gated.up.rows, gated.gate.parent.rows} == {"R"}


@pytest.mark.parametrize("variant", VARIANTS)
def test_no_weight_is_lost_and_sizes_fit(variant: str) -> None:
    program = build_program(variant_config(variant))

    early = take_rows_early(program)

    check_program(early)
    before = [weights_of(op) for op in (*program.body, *program.head) if weights_of(op)]
    after = [weights_of(op) for op in (*early.body, *early.head) if weights_of(op)]
    assert before == after


def test_logits_keep_their_place() -> None:
    program = build_program(replace(tiny_config("gemma3"), final_softcap=30.0))

    early = take_rows_early(program)

    assert early.logits == program.logits
    assert early.head[-1] == Softcap(program.logits, 30.0)


def test_a_prompt_is_cheaper_and_a_decode_step_costs_the_same() -> None:
    program = build_program(tiny_config("llama"))
    early = take_rows_early(program)
    cfg = tiny_config("llama")
    attention_columns = cfg.num_query_heads * cfg.head_dim
    tail = cfg.hidden_size * (attention_columns + 3 * cfg.intermediate_size)

    assert linear_flops(early, 1, 1) == linear_flops(program, 1, 1)
    assert linear_flops(early, 100, 1) == linear_flops(program, 100, 1) - 2 * 99 * tail


def test_twice_is_as_once() -> None:
    early = take_rows_early(build_program(tiny_config("llama")))

    assert take_rows_early(early) == early
