"""The planning vectors T1, T2, T4, T5, T18 and T19, computed on the Program that would run."""

from collections.abc import Sequence

import pytest
from tests.unit.plan.llama_8b import H100, PROGRAM

from kokuban.plan.roofline import Machine, StepTime, step_time
from kokuban.program.cost import (
    ChunkShape,
    OpCost,
    program_costs,
    summarize,
    total,
    uniform_weight_bytes,
)

WEIGHTS = uniform_weight_bytes(PROGRAM, bits=16)

NORMS_AND_ROWS = 2e-4
"""The vectors leave out norm weights and embedding rows, half a megabyte in fifteen gigabytes."""


def costs(chunks: Sequence[ChunkShape]) -> list[OpCost]:
    step = summarize(chunks, PROGRAM.kv)
    return [c for _, c in program_costs(PROGRAM, step, weight_bytes=WEIGHTS, kv_dtype="bf16")]


def decode(batch: int, context: int) -> list[OpCost]:
    """Each request computes one token and attends to `context` of them, its own included."""
    return costs([ChunkShape(context - 1, 1, 1)] * batch)


def milliseconds(time: StepTime) -> float:
    return time.seconds * 1e3


def test_one_token_reads_all_weights_but_the_embedding_and_all_kv() -> None:
    """T1: 7,504,658,432 weights of two bytes, 4,096 tokens of 131,072 bytes."""
    matrices = total(c for c in decode(1, 4096) if c.kind in ("linear", "head"))
    attention = total(c for c in decode(1, 4096) if c.kind == "attention")

    assert matrices.weight_bytes == 15_009_316_864
    assert attention.kv_read_bytes == 536_870_912
    assert matrices.flops + attention.flops == 2 * 7_504_658_432 + 4 * 131_072 * 4096


def test_decode_of_one_request_is_bound_by_memory() -> None:
    """T1."""
    time = step_time(decode(1, 4096), H100)

    assert milliseconds(time) == pytest.approx(4.6407, rel=NORMS_AND_ROWS)
    assert time.bound == "memory"


@pytest.mark.parametrize(
    ("batch", "expected_ms"), [(32, 9.6087), (64, 14.7370), (96, 19.8654), (128, 24.9937)]
)
def test_the_weights_are_read_once_for_the_whole_batch(batch: int, expected_ms: float) -> None:
    """T2."""
    assert step_time(decode(batch, 4096), H100).lower_s * 1e3 == pytest.approx(
        expected_ms, rel=NORMS_AND_ROWS
    )


def test_a_large_batch_of_short_requests_is_bound_by_compute() -> None:
    """T4, its attention left out."""
    time = step_time([c for c in decode(512, 1) if c.kind != "attention"], H100)

    assert milliseconds(time) == pytest.approx(7.7702, rel=NORMS_AND_ROWS)
    assert time.bound == "compute"


def test_three_readings_of_a_step_are_in_order() -> None:
    """T5."""
    time = step_time(decode(512, 128), H100)

    assert time.lower_s * 1e3 == pytest.approx(7.805, rel=5e-4)
    assert time.seconds * 1e3 == pytest.approx(10.334, rel=5e-4)
    assert time.upper_s * 1e3 == pytest.approx(14.850, rel=5e-4)


def body_flops(chunks: Sequence[ChunkShape]) -> int:
    return total(c for c in costs(chunks) if c.kind != "head").flops


def test_a_prefill_counts_the_triangle_of_attended_pairs() -> None:
    """T18."""
    flops = body_flops([ChunkShape(0, 8192)])

    attention = 4 * 131_072 * (8192 * 8193 // 2)
    assert flops == 2 * 6_979_321_856 * 8192 + attention
    assert flops / 1e12 == pytest.approx(131.94, abs=0.005)
    assert flops / H100.flops_per_s * 1e3 == pytest.approx(133.4, abs=0.05)
    assert attention / flops == pytest.approx(0.133, abs=0.0005)


def test_chunks_sum_to_the_whole_prompt() -> None:
    """T19."""
    chunks = [body_flops([ChunkShape(start, 2048)]) for start in range(0, 8192, 2048)]

    assert [round(flops / 1e12, 2) for flops in chunks] == [29.69, 31.89, 34.09, 36.28]
    assert sum(chunks) == body_flops([ChunkShape(0, 8192)])


def test_efficiency_lengthens_a_step() -> None:
    half = Machine(H100.flops_per_s, H100.bytes_per_s, memory_efficiency=0.5)

    assert step_time(decode(1, 4096), half).seconds == pytest.approx(
        2 * step_time(decode(1, 4096), H100).seconds
    )
    assert H100.ridge == pytest.approx(295.2, abs=0.05)
