"""FLOPs and bytes of single operations, and the sums of a step."""

import pytest
from tools.tiny_configs import tiny_config

from kokuban.models.registry import build_program
from kokuban.program.cost import (
    ChunkShape,
    attended_pairs,
    program_costs,
    summarize,
    tokens_read,
    uniform_weight_bytes,
)
from kokuban.program.ops import Embed, KvWrite, Linear, TakeRows


@pytest.mark.parametrize("window", [None, 1, 5, 8, 100])
@pytest.mark.parametrize(("start", "num_tokens"), [(0, 1), (0, 9), (3, 4), (7, 1), (20, 6)])
def test_attended_pairs_are_those_of_a_count_by_hand(
    window: int | None, start: int, num_tokens: int
) -> None:
    pairs = [
        (query, key)
        for query in range(start, start + num_tokens)
        for key in range(query + 1)
        if window is None or key > query - window
    ]

    chunk = ChunkShape(start, num_tokens)
    assert attended_pairs(chunk, window) == len(pairs)
    assert tokens_read(chunk, window) == len({key for _, key in pairs})


def test_a_step_sums_its_chunks_by_window() -> None:
    kv = build_program(tiny_config("gemma3")).kv

    step = summarize([ChunkShape(100, 1, 1), ChunkShape(0, 30, 1)], kv)

    assert (step.num_tokens, step.num_rows) == (31, 2)
    assert step.attended_pairs == {None: 101 + 465, 24: 24 + 300 + 6 * 24}
    assert step.kv_tokens == {None: 101 + 30, 24: 24 + 30}


def test_costs_follow_tokens_rows_and_stored_bytes() -> None:
    program = build_program(tiny_config("llama"))
    step = summarize([ChunkShape(10, 3, 1)], program.kv)
    weights = uniform_weight_bytes(program, bits=16)

    costs = list(program_costs(program, step, weight_bytes=weights, kv_dtype="bf16"))

    by_type = {type(op): cost for op, cost in reversed(costs)}
    assert by_type[Embed].weight_bytes == 3 * 256 * 2
    assert by_type[Linear].flops == 2 * 3 * 256 * 384
    assert by_type[Linear].weight_bytes == 256 * 384 * 2
    assert by_type[Linear].value_bytes == 4 * 3 * (256 + 384)
    assert by_type[KvWrite].kv_write_bytes == 3 * 2 * 64 * 2
    assert by_type[TakeRows].value_bytes == 4 * (3 * 256 + 256)
    quantised = program_costs(program, step, weight_bytes=weights, kv_dtype="int8")
    [write, *_] = [cost for op, cost in quantised if isinstance(op, KvWrite)]
    heads = program.kv.num_kv_heads
    assert write.kv_write_bytes == 3 * 2 * (64 + 4 * heads)
    head = [cost for _, cost in costs if cost.kind == "head"]
    assert [cost.flops for cost in head] == [2 * 1 * 256 * 320]


def test_bits_that_are_no_whole_bytes_are_rounded_up_for_each_tensor() -> None:
    program = build_program(tiny_config("llama"))

    assert uniform_weight_bytes(program, bits=5)["blk.0.ffn_down.weight"] == 256 * 512 * 5 // 8
