"""The least time of a step by hand, on a machine of round numbers: Llama-3.1-8B in 4 bits.

Its products have 6,979,321,856 weights in the layers and 525,336,576 in the head, K and V of a
token are 131,072 bytes in bf16, and a pair of tokens costs 524,288 operations of attention.
"""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.unit.plan.llama_8b import PROGRAM

from kokuban.bench.limits import Limits, limits_of
from kokuban.bench.offline import RoundFigures, Work, of_limit
from kokuban.bench.probes import dram_bytes
from kokuban.engine.client import EngineInfo
from kokuban.plan.cost import CostModel
from kokuban.plan.machine import MachineConstants
from kokuban.program.cost import uniform_weight_bytes

LAYERS, HEAD, KV_BYTES, PAIR_FLOPS = 6_979_321_856, 525_336_576, 131_072, 524_288
BYTES_S, FLOAT_S, INT8_S = 10e9, 50e9, 200e9
INFO = EngineInfo(
    model="m", vocab_size=128_256, max_context_tokens=8192, block_size=16, num_blocks=512,
    bytes_per_token=KV_BYTES, kv_pool_bytes=8192 * KV_BYTES, num_kv_tokens=8192,
    requests_at_full_length=1, kv_dtype="bf16", threads=2, isa="avx2", token_budget=2048,
)  # fmt: skip


class FakeProbes:
    """A machine of 10 GB/s, 50 GFLOP/s and 200 Gop/s with two threads, and nothing with others."""

    def bytes_per_s(self, working_set_bytes: int, threads: int) -> float:
        return BYTES_S if (working_set_bytes, threads) == (dram_bytes(), 2) else 1.0

    def ops_per_s(self, probe: str, threads: int) -> float:
        return {"fma": FLOAT_S, "int8": INT8_S}[probe] if threads == 2 else 1.0


def make_limits(kv_dtype: str = "bf16") -> Limits:
    cost = CostModel(
        PROGRAM,
        weight_bytes=uniform_weight_bytes(PROGRAM, 4),
        kv_bytes_per_token=KV_BYTES,
        constants=MachineConstants(),
    )
    return Limits(cost, replace(INFO, kv_dtype=kv_dtype), FakeProbes())


def test_a_token_of_one_request_takes_as_long_as_reading_weights_and_kv() -> None:
    limits = make_limits()

    found = limits.decode_s(limits.measure(), 1, 1000)

    assert found == pytest.approx(((LAYERS + HEAD) / 2 + 1000 * KV_BYTES) / BYTES_S)


@pytest.mark.parametrize(("kv_dtype", "attention_s"), [("bf16", FLOAT_S), ("int8", INT8_S)])
def test_a_prompt_takes_as_long_as_its_products(kv_dtype: str, attention_s: float) -> None:
    """But for the head, whose one row is bound by reading it."""
    limits = make_limits(kv_dtype)

    found = limits.prefill_s(limits.measure(), 2, 512)

    products = 2 * 1024 * LAYERS / INT8_S + HEAD / 2 / BYTES_S
    attention = 2 * (512 * 513 // 2) * PAIR_FLOPS / attention_s
    assert found == pytest.approx(products + attention)


def test_a_round_is_compared_with_the_limits_before_and_after_it() -> None:
    """Memory was half as fast afterwards."""
    limits = make_limits()
    before = limits.measure()
    after = replace(before, weight_bytes_per_s=BYTES_S / 2, kv_bytes_per_s=BYTES_S / 2)
    figures = RoundFigures(
        ttft_s=100.0, prefill_tok_s=5.12, decode_tok_s=1.0, tpot_s=1.0, output_tok_s=1.0,
        total_tok_s=1.0, seconds=200.0,
    )  # fmt: skip
    work = Work(size=1, prompt_tokens=900, output_tokens=200)

    found = of_limit(figures, work, limits, (before, after))

    least_s = ((LAYERS + HEAD) / 2 + 1000 * KV_BYTES) / BYTES_S
    assert found.decode_of_limit == pytest.approx((least_s + 2 * least_s) / 2)
    assert found.prefill_of_limit == pytest.approx(limits.prefill_s(before, 1, 900) / 100, rel=2e-3)
    assert of_limit(replace(figures, tpot_s=None), work, limits, [before]).decode_of_limit is None


@pytest.mark.parametrize(("cost", "speculate"), [(None, ""), (make_limits()._cost, "ngram")])
def test_what_cannot_be_compared_has_no_limit(cost: CostModel | None, speculate: str) -> None:
    """An engine elsewhere, and steps that give several tokens."""
    client = SimpleNamespace(info=replace(INFO, speculate=speculate))

    assert limits_of(cast("Any", SimpleNamespace(cost=cost, client=client))) is None
