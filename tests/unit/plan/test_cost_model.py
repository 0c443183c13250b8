"""Prices of steps, prompts and moves of KV: the planning vectors T1, T2, T5, T18, T19, T25."""

from dataclasses import replace

import pytest
from tests.unit.plan.llama_8b import H100, PROGRAM

from kokuban.core.model_config import ModelConfig, RopeConfig
from kokuban.models.registry import build_program
from kokuban.plan.cost import CostModel
from kokuban.plan.machine import MachineConstants, at_its_limits
from kokuban.plan.roofline import Machine, step_time
from kokuban.program.cost import (
    ChunkShape,
    StepSummary,
    program_costs,
    summarize,
    uniform_weight_bytes,
)

NEVER = 1e30
"""A rate at which anything takes no time."""

IDEAL = replace(
    at_its_limits(
        bytes_per_s=H100.bytes_per_s,
        float_flops_per_s=H100.flops_per_s,
        int8_flops_per_s=2 * H100.flops_per_s,
        int8_attention=False,
    ),
    copy_bytes_per_s=64e9,
    disk_read_bytes_per_s=2e9,
    disk_write_bytes_per_s=1e9,
    disk_latency_s=0.001,
)

NORMS_AND_ROWS = 2e-4
"""The vectors leave out norm weights and embedding rows; this model leaves them out as well, and
rounds otherwise."""

WINDOWED = build_program(
    ModelConfig(
        architecture="gemma3",
        name="windowed",
        num_layers=6,
        hidden_size=64,
        intermediate_size=128,
        num_query_heads=4,
        num_kv_heads=1,
        head_dim=16,
        vocab_size=1000,
        max_positions=8192,
        rms_norm_eps=1e-6,
        rope=RopeConfig(rotary_dim=16),
        rope_local=RopeConfig(rotary_dim=16),
        sliding_window=512,
        window_layers=(True, True, False, True, True, False),
        qk_norm=True,
        attention_scale=0.25,
    )
)


def llama(constants: MachineConstants = IDEAL, *, bits: int = 16, chunk: int = 2048) -> CostModel:
    return CostModel(
        PROGRAM,
        weight_bytes=uniform_weight_bytes(PROGRAM, bits),
        kv_bytes_per_token=PROGRAM.kv.bytes_per_token("bf16"),
        constants=constants,
        chunk_tokens=chunk,
    )


@pytest.mark.parametrize(("batch", "ms"), [(1, 4.6407), (32, 9.6087), (128, 24.9937)])
def test_a_decode_step_reads_the_weights_once_and_each_request_its_kv(
    batch: int, ms: float
) -> None:
    """T1 and T2."""
    assert llama().decode_s(4096, batch) * 1e3 == pytest.approx(ms, rel=NORMS_AND_ROWS)


def test_each_operation_takes_the_slower_of_its_two_times() -> None:
    """T5: products bound by compute, attention bound by memory."""
    assert llama().decode_s(128, 512) * 1e3 == pytest.approx(10.334, rel=5e-4)


def test_a_prompt_costs_its_products_and_the_triangle_of_its_attention() -> None:
    """T18."""
    assert llama().prefill_s(0, 8192) * 1e3 == pytest.approx(133.4, abs=0.05)


@pytest.mark.parametrize("chunk", [512, 2048, 8192, 100_000])
def test_the_chunks_of_a_prompt_sum_to_the_whole(chunk: int) -> None:
    """T19."""
    whole = llama(chunk=8192).prefill_s(0, 8192)

    assert llama(chunk=chunk).prefill_s(0, 8192) == pytest.approx(whole, rel=1e-12)
    parts = [llama().prefill_s(start, 1024) for start in range(0, 8192, 1024)]
    assert sum(parts) == pytest.approx(whole, rel=1e-12)


def test_restoring_is_cheaper_than_recomputing() -> None:
    """T25: 4,096 tokens over a link of 64 GB/s, against half the peak."""
    model = llama(replace(IDEAL, float_flops_per_s=989e12 / 2, attention_flops_per_s=989e12 / 2))

    restore_s = model.restore_s(4096 * model.kv_bytes_per_token, "ram")

    assert restore_s * 1e3 == pytest.approx(8.39, abs=0.005)
    assert model.prefill_s(0, 4096) * 1e3 == pytest.approx(124.5, abs=0.05)


def test_disk_costs_its_latency_its_transfer_and_the_copy_behind_it() -> None:
    model = llama()

    assert model.restore_s(64_000_000, "disk") == pytest.approx(0.001 + 0.032 + 0.001)
    assert model.store_s(64_000_000, "disk") == pytest.approx(0.001 + 0.064 + 0.001)
    assert model.store_s(64_000_000, "ram") == pytest.approx(0.001)


def test_nothing_costs_nothing() -> None:
    model = llama(replace(IDEAL, step_overhead_s=0.25))

    assert model.prefill_s(100, 0) == 0
    assert model.restore_s(0, "disk") == model.store_s(0, "disk") == 0
    assert model.step_s(summarize([], PROGRAM.kv)) == 0.25


def test_overheads_are_counted_for_the_step_its_rows_and_its_tokens() -> None:
    overheads = replace(IDEAL, step_overhead_s=1.0, row_overhead_s=0.1, token_overhead_s=0.01)
    step = summarize([ChunkShape(0, 30, 1), ChunkShape(5, 1, 1)], PROGRAM.kv)

    extra = llama(overheads).step_s(step) - llama().step_s(step)

    assert extra == pytest.approx(1.0 + 2 * 0.1 + 31 * 0.01)


def test_each_operation_that_runs_has_its_overhead() -> None:
    model, body, head = llama(replace(IDEAL, op_overhead_s=1.0)), PROGRAM.body, PROGRAM.head

    def seconds(rows: int) -> float:
        return model.step_s(summarize([ChunkShape(0, 1, rows)], PROGRAM.kv))

    assert seconds(0) == pytest.approx(len(body), abs=0.1)
    assert seconds(1) == pytest.approx(len(body) + len(head), abs=0.1)


def test_quantised_weights_are_multiplied_at_the_rate_of_int8() -> None:
    """Bound by compute, a prompt takes half the time at twice the rate."""
    products = replace(IDEAL, attention_flops_per_s=NEVER, kv_bytes_per_s=NEVER)

    wide = llama(products).prefill_s(0, 4096)

    assert llama(products, bits=8).prefill_s(0, 4096) == pytest.approx(wide / 2)


def test_a_step_that_samples_nothing_does_not_read_the_output_head() -> None:
    head_bytes = 2 * 128256 * 4096

    def seconds(rows: int) -> float:
        return llama().step_s(summarize([ChunkShape(0, 1, rows)], PROGRAM.kv))

    assert seconds(1) - seconds(0) == pytest.approx(head_bytes / H100.bytes_per_s)


@pytest.mark.parametrize("program", [PROGRAM, WINDOWED], ids=["full", "windows"])
def test_the_price_is_that_of_the_programs_own_costs(program: object) -> None:
    """Operation by operation, without the shortcuts: the same seconds, but for norm weights."""
    assert isinstance(program, type(PROGRAM))
    weights = uniform_weight_bytes(program, 16)
    step = summarize([ChunkShape(0, 700, 1), ChunkShape(900, 1, 1)], program.kv)
    machine = Machine(flops_per_s=1e12, bytes_per_s=1e11)
    constants = replace(
        IDEAL,
        float_flops_per_s=1e12,
        attention_flops_per_s=1e12,
        weight_bytes_per_s=1e11,
        kv_bytes_per_s=1e11,
    )
    model = CostModel(
        program,
        weight_bytes=weights,
        kv_bytes_per_token=program.kv.bytes_per_token("bf16"),
        constants=constants,
    )

    costs = [c for _, c in program_costs(program, step, weight_bytes=weights, kv_dtype="bf16")]
    exact = step_time([c for c in costs if c.kind != "other"], machine).seconds

    assert model.step_s(step) == pytest.approx(exact, rel=1e-12)


def test_values_between_operations_cost_their_bytes() -> None:
    """All but products and attention; the embedding's row comes with them."""
    weights = uniform_weight_bytes(PROGRAM, 16)
    step = summarize([ChunkShape(0, 10, 2)], PROGRAM.kv)
    costs = program_costs(PROGRAM, step, weight_bytes=weights, kv_dtype="bf16")
    moved = sum(c.value_bytes for _, c in costs if c.kind == "other") + 10 * 2 * 4096

    slow = llama(replace(IDEAL, value_bytes_per_s=1e9)).step_s(step)

    assert slow - llama().step_s(step) == pytest.approx(moved / 1e9)


def test_a_longer_context_or_a_larger_batch_never_takes_less_time() -> None:
    model = llama(MachineConstants())
    times = [[model.decode_s(context, batch) for context in (1, 100, 4000)] for batch in (1, 2, 9)]

    assert all(row == sorted(row) for row in times)
    assert all(list(column) == sorted(column) for column in zip(*times, strict=True))


def test_a_window_bounds_what_later_tokens_cost() -> None:
    """Two of six layers see everything, four see 512 tokens."""
    weights = uniform_weight_bytes(WINDOWED, 16)
    model = CostModel(
        WINDOWED,
        weight_bytes=weights,
        kv_bytes_per_token=WINDOWED.kv.bytes_per_token("bf16"),
        constants=IDEAL,
    )
    per_pair = 4 * 4 * 16 / IDEAL.attention_flops_per_s

    far, near = model.prefill_s(4096, 512), model.prefill_s(1024, 512)

    assert far - near == pytest.approx(2 * per_pair * 512 * 3072, rel=1e-6)


def test_an_empty_summary_can_be_priced() -> None:
    assert llama().step_s(StepSummary(0, 0, {None: 0}, {None: 0})) == 0
