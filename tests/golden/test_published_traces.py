"""The reference values of public traces: LRU hit rates, reuse by agents, empty slots of pages.

Mooncake FAST'25 (the rates at 1 to 50 % of the names agree with a computation by others), Azure LLM
inference 2023, agent sessions of WEKA. Each value was computed by a program that shares no code.
"""

import pytest
from tests.shared_data import shared_data

from kokuban.simulate.fragmentation import pages_waste
from kokuban.simulate.policy import PolicyReplay
from kokuban.simulate.readers import read_trace

CONVERSATION = {
    1_000: 0.0445,
    5_859: 0.1355,
    10_000: 0.2112,
    30_000: 0.3257,
    50_000: 0.3546,
    97_656: 0.3635,
    100_000: 0.3637,
    0: 0.3664,
}
SYNTHETIC = {
    1_000: 0.0825,
    5_859: 0.3094,
    10_000: 0.4235,
    30_000: 0.6242,
    50_000: 0.6396,
    97_656: 0.6396,
    100_000: 0.6396,
    0: 0.6396,
}


@pytest.fixture(scope="module")
def conversation() -> PolicyReplay:
    return PolicyReplay(read_trace(shared_data("traces/mooncake_conversation.jsonl")))


@pytest.fixture(scope="module")
def synthetic() -> PolicyReplay:
    return PolicyReplay(read_trace(shared_data("traces/mooncake_synthetic.jsonl")))


@pytest.mark.parametrize(("capacity", "expected"), CONVERSATION.items())
def test_lru_on_the_conversation_trace(
    conversation: PolicyReplay, capacity: int, expected: float
) -> None:
    assert round(conversation.run(capacity).hit_rate, 4) == expected


@pytest.mark.parametrize(("capacity", "expected"), SYNTHETIC.items())
def test_lru_on_the_synthetic_trace(
    synthetic: PolicyReplay, capacity: int, expected: float
) -> None:
    assert round(synthetic.run(capacity).hit_rate, 4) == expected


@pytest.mark.parametrize(
    ("name", "counts"),
    [("conversation", (12_031, 288_500, 182_790)), ("synthetic", (3_993, 121_877, 43_924))],
)
def test_the_traces_are_the_ones_that_the_values_hold_for(
    name: str, counts: tuple[int, int, int]
) -> None:
    trace = read_trace(shared_data(f"traces/mooncake_{name}.jsonl"))

    assert (len(trace.requests), trace.num_blocks, trace.num_unique_blocks) == counts


def test_the_order_of_touching_changes_little(synthetic: PolicyReplay) -> None:
    """As the engine frees blocks, tail first."""
    assert round(synthetic.run(1_000, tail_first=True).hit_rate, 4) == 0.0841


def test_other_ways_to_count_hits(synthetic: PolicyReplay) -> None:
    """By token, by full block, and as the mean over requests."""
    result = synthetic.run(0)

    assert round(result.token_hit_rate, 4) == 0.6512
    assert round(result.full_block_hit_rate, 4) == 0.6594
    assert round(result.mean_request_rate, 4) == 0.4315


def test_agents_reuse_most_of_their_blocks() -> None:
    """20 of the 710 sessions, over which the share is 0.9639."""
    result = PolicyReplay(read_trace(shared_data("agents"))).run(0)

    assert (result.hit_blocks, result.num_blocks) == (890_946, 955_414)
    assert round(result.hit_rate, 4) == 0.9325


@pytest.mark.parametrize(
    ("name", "block_size", "held"),
    [
        ("code", 8, 0.9984),
        ("code", 16, 0.9965),
        ("code", 32, 0.9928),
        ("code", 128, 0.9707),
        ("conv", 8, 0.9972),
        ("conv", 16, 0.9939),
        ("conv", 32, 0.9875),
        ("conv", 128, 0.9506),
    ],
)
def test_pages_are_full_but_for_their_last_block(name: str, block_size: int, held: float) -> None:
    trace = read_trace(shared_data(f"traces/azure_2023_{name}.csv"))

    assert round(1 - pages_waste(trace, block_size), 4) == held
