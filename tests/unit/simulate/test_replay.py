"""Traces through the real scheduler: every number of the result counted by hand."""

from dataclasses import replace

import pytest
from tests.unit.simulate.setups import INSTANT, setup, small_model

from kokuban.plan.cost import CostModel
from kokuban.simulate.meter import Percentiles
from kokuban.simulate.replay import ReplayResult, replay
from kokuban.simulate.trace import Trace, TraceRequest, make_trace


def request(prompt: int, output: int, arrival_s: float = 0.0, **more: object) -> TraceRequest:
    return TraceRequest(
        arrival_s=arrival_s,
        prompt_tokens=prompt,
        output_tokens=output,
        **more,  # type: ignore[arg-type]
    )


def trace(*requests: TraceRequest, block_tokens: int = 16) -> Trace:
    return make_trace("t", block_tokens, requests)


def test_a_request_takes_its_prompt_and_a_step_for_each_further_token() -> None:
    result = replay(trace(request(20, 5, arrival_s=3.0)), setup())

    assert (result.num_requests, result.num_refused, result.num_steps) == (1, 0, 5)
    assert (result.prompt_tokens, result.output_tokens, result.computed_tokens) == (20, 5, 24)
    assert (result.duration_s, result.busy_s) == (pytest.approx(8.0), pytest.approx(5.0))
    assert (result.ttft_s.p50, result.tpot_s.p50) == (pytest.approx(1.0), pytest.approx(1.0))


def test_waste_is_the_empty_end_of_the_last_block_averaged_over_time() -> None:
    """20 to 24 tokens in two blocks of 16, one second each."""
    result = replay(trace(request(20, 5)), setup())

    assert result.waste == pytest.approx(1 - (20 + 21 + 22 + 23 + 24) / (5 * 32))


def test_a_shared_prefix_is_computed_once_and_held_once() -> None:
    """Two blocks in common: the second request computes 8 tokens of 40, up to its own end."""
    shared = {"block_ids": (1, 2)}

    result = replay(trace(request(40, 1, **shared), request(40, 1, 5.0, **shared)), setup())

    assert (result.cached_tokens, result.computed_tokens) == (32, 48)
    assert result.hit_rate == pytest.approx(32 / 80)


def test_the_same_prompt_again_computes_its_last_token() -> None:
    same = {"block_ids": (1, 2)}

    result = replay(trace(request(32, 1, **same), request(32, 1, 5.0, **same)), setup())

    assert (result.cached_tokens, result.computed_tokens) == (31, 33)


def test_without_a_prefix_cache_everything_is_computed() -> None:
    same = {"block_ids": (1, 2)}

    result = replay(
        trace(request(32, 1, **same), request(32, 1, 5.0, **same)), setup(prefix_cache=False)
    )

    assert (result.cached_tokens, result.computed_tokens) == (0, 64)


def turns() -> tuple[TraceRequest, ...]:
    """Three turns of an agent, each with everything before it and about a block more."""
    return (
        request(32, 9, 0.0, block_ids=(1, 2), session="s", think_s=0.0),
        request(48, 9, 1.0, block_ids=(1, 2, 3), session="s", think_s=10.0),
        request(64, 2, 2.0, block_ids=(1, 2, 3, 4), session="s", think_s=30.0),
    )


def test_a_turn_begins_when_its_tool_is_done_and_not_when_the_trace_says() -> None:
    """9 steps, 10 s, 9 steps, 30 s, 2 steps."""
    result = replay(trace(*turns()), setup())

    assert result.duration_s == pytest.approx(9 + 10 + 9 + 30 + 2)
    assert result.busy_s == pytest.approx(20)
    assert result.ttft_s == Percentiles(pytest.approx(1.0), pytest.approx(1.0), pytest.approx(1.0))


def test_an_agent_computes_its_new_tokens_only() -> None:
    """Its answers are in the cache as well, but for the token that was said last: 32 + 8 of 48."""
    result = replay(trace(*turns()), setup())

    assert result.cached_tokens == 40 + 56
    assert result.computed_tokens == (32 + 8) + (8 + 8) + (8 + 1)


def test_two_sessions_run_beside_each_other() -> None:
    other = [
        request(32, 9, 0.0, block_ids=(9,), session="u"),
        request(48, 2, 0.0, block_ids=(9, 8), session="u", think_s=1.0),
    ]

    result = replay(trace(*turns(), *other), setup())

    assert (result.num_requests, result.max_running) == (5, 2)
    assert result.duration_s == pytest.approx(60)


def test_kv_that_leaves_the_pool_comes_back_from_host_memory() -> None:
    """The second session takes all blocks of the first while that one's tool runs."""
    first = (
        request(32, 2, 0.0, block_ids=(1, 2), session="s"),
        request(36, 1, 0.0, block_ids=(1, 2), session="s", think_s=20.0),
    )
    crowd = request(60, 2, 10.0)
    computing = small_model(replace(INSTANT, token_overhead_s=0.01))
    dear = small_model(replace(INSTANT, token_overhead_s=0.01, copy_bytes_per_s=1.0))

    def run(model: CostModel, num_ram_blocks: int) -> ReplayResult:
        return replay(
            trace(*first, crowd),
            setup(num_blocks=4, model=model, num_ram_blocks=num_ram_blocks),
        )

    without, kept, too_dear = run(computing, 0), run(computing, 16), run(dear, 16)

    assert (without.cached_tokens, without.cached_ram_tokens) == (0, 0)
    assert (kept.cached_tokens, kept.cached_ram_tokens) == (33, 33)
    assert without.computed_tokens - kept.computed_tokens == 33
    assert too_dear.cached_ram_tokens == 0
    slower = run(small_model(replace(INSTANT, token_overhead_s=0.01, copy_bytes_per_s=1e5)), 16)
    assert slower.cached_ram_tokens == 33
    # Three blocks went down and came up again, at least.
    assert slower.busy_s - kept.busy_s >= 6 * 512 / 1e5 - 1e-9


def test_what_can_never_fit_is_refused_with_the_turns_after_it() -> None:
    result = replay(trace(*turns(), request(20, 5)), setup(max_context_tokens=40))

    assert (result.num_requests, result.num_refused) == (2, 2)


def test_a_pool_that_is_too_small_preempts_and_counts_it() -> None:
    """Two requests of two blocks each on three: the later one gives way and begins again."""
    result = replay(trace(request(15, 8), request(15, 8)), setup(num_blocks=3, prefix_cache=False))

    assert result.preemptions == 1
    assert result.recomputed_tokens == 16
    assert (result.num_requests, result.output_tokens) == (2, 16)


def test_more_requests_wait_than_the_engine_is_shown_and_all_are_served_in_order() -> None:
    result = replay(trace(*(request(16, 2) for _ in range(300))), setup(num_blocks=16))

    assert (result.num_requests, result.output_tokens) == (300, 600)
    assert result.ttft_s.p50 < result.ttft_s.p90 < result.ttft_s.p99


def test_progress_is_told_to_the_end() -> None:
    told: list[tuple[int, int]] = []

    replay(trace(*turns()), setup(), lambda done, total: told.append((done, total)))

    assert told == [(1, 3), (2, 3), (3, 3)]


def test_percentiles_are_by_nearest_rank() -> None:
    assert Percentiles.of([float(value) for value in range(100, 0, -1)]) == Percentiles(50, 90, 99)
    assert Percentiles.of([5.0]) == Percentiles(5, 5, 5)
    assert Percentiles.of([]) == Percentiles(0, 0, 0)
