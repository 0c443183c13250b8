"""Reserved regions: sizes and places by hand, and whole runs whose steps take a second each."""

from dataclasses import replace

import pytest
from tests.unit.simulate.setups import ONE_SECOND_STEPS, SMALL_KV, config, small_model

from kokuban.simulate.contiguous import (
    ContiguousResult,
    Regions,
    Reservation,
    replay_contiguous,
    reserved_tokens,
)
from kokuban.simulate.fragmentation import pages_waste, reservation_waste
from kokuban.simulate.trace import Trace, TraceRequest, make_trace


def request(prompt: int, output: int, arrival_s: float = 0.0) -> TraceRequest:
    return TraceRequest(arrival_s=arrival_s, prompt_tokens=prompt, output_tokens=output)


def run(
    trace: Trace, reservation: Reservation, num_slots: int, *, context: int = 100, budget: int = 64
) -> ContiguousResult:
    return replay_contiguous(
        trace,
        reservation,
        model=ONE_SECOND_STEPS,
        kv=SMALL_KV,
        num_slots=num_slots,
        max_context_tokens=context,
        scheduler=config(token_budget=budget, max_running_requests=8),
    )


@pytest.mark.parametrize(
    ("output", "slots"), [(1, 11), (2, 12), (3, 14), (25, 42), (32, 42), (33, 74)]
)
def test_a_power_of_two_is_reserved_for_the_answer(output: int, slots: int) -> None:
    """The paper's example: 32 positions for 25 outputs."""
    assert reserved_tokens(request(10, output), "power-of-two", 2048) == slots


def test_the_maximum_is_the_context_and_the_oracle_knows() -> None:
    assert reserved_tokens(request(10, 25), "maximum", 2048) == 2048
    assert reserved_tokens(request(10, 25), "oracle", 2048) == 34


def test_regions_are_placed_first_fit_and_gaps_join_again() -> None:
    regions = Regions(100)
    starts = [regions.take(length) for length in (30, 20, 50)]
    assert starts == [0, 30, 50]
    assert regions.take(1) is None

    regions.give_back(0, 30)
    regions.give_back(50, 50)
    assert regions.num_free == 80
    assert regions.take(60) is None, "80 are free, but no 60 of them lie together"
    assert regions.take(40) == 50

    regions.give_back(30, 20)
    assert regions.take(50) == 0
    assert regions.num_free == 10


def test_a_request_takes_a_step_for_its_prompt_and_one_for_each_further_token() -> None:
    result = run(make_trace("t", 1, [request(10, 5, arrival_s=2.0)]), "oracle", 14)

    assert (result.num_requests, result.num_refused) == (1, 0)
    assert result.duration_s == pytest.approx(2.0 + 5)
    assert (result.ttft_s.p50, result.tpot_s.p50) == (pytest.approx(1.0), pytest.approx(1.0))


def test_waste_is_what_the_region_holds_beside_tokens_averaged_over_time() -> None:
    """Tokens computed at the ends of five steps: 10, 11, 12, 13, 14."""
    one = make_trace("t", 1, [request(10, 5)])

    assert run(one, "oracle", 100).waste == pytest.approx(1 - 60 / 70)
    assert run(one, "power-of-two", 100).waste == pytest.approx(1 - 60 / 90)
    assert run(one, "maximum", 100).waste == pytest.approx(1 - 60 / 500)


def test_a_prompt_longer_than_the_budget_is_computed_in_chunks() -> None:
    result = run(make_trace("t", 1, [request(10, 1)]), "oracle", 100, budget=8)

    assert result.duration_s == pytest.approx(2.0)


def test_those_that_decode_come_before_the_chunks_of_prompts() -> None:
    """A long prompt in chunks of what is left: the short request gets a token with each step."""
    trace = make_trace("t", 1, [request(4, 5), request(40, 1)])

    result = run(trace, "oracle", 100, budget=8)

    assert result.tpot_s.p50 == pytest.approx(1.0)
    # 4 of the prompt beside the first, then 7 beside each of four tokens, then 8.
    assert result.duration_s == pytest.approx(6.0)


def test_requests_run_beside_each_other_as_far_as_their_regions_fit() -> None:
    three = make_trace("t", 1, [request(10, 5)] * 3)

    assert run(three, "oracle", 42).max_running == 3
    two = run(three, "oracle", 41)
    assert (two.max_running, two.duration_s) == (2, pytest.approx(10.0))
    assert two.mean_running == pytest.approx(1.5)
    assert run(three, "maximum", 199).max_running == 1


def test_what_is_free_but_of_no_use_to_who_waits_is_told() -> None:
    """Two of three run for five steps; 13 slots of 41 are free, and 14 are wanted."""
    result = run(make_trace("t", 1, [request(10, 5)] * 3), "oracle", 41)

    assert result.unusable == pytest.approx(13 / 41)
    assert run(make_trace("t", 1, [request(10, 5)] * 3), "oracle", 42).unusable == 0


def test_requests_begin_in_the_order_of_their_arrival() -> None:
    """The second does not fit beside the first, and the small third does not pass it."""
    trace = make_trace("t", 1, [request(10, 5), request(20, 5, 1.0), request(1, 1, 2.0)])

    result = run(trace, "oracle", 30)

    assert result.ttft_s.p50 == pytest.approx(4.0)
    assert result.max_running == 2


def test_a_request_that_no_region_can_hold_is_refused_and_the_others_run() -> None:
    trace = make_trace("t", 1, [request(10, 5), request(99, 9), request(10, 5)])

    assert (run(trace, "oracle", 50).num_requests, run(trace, "oracle", 50).num_refused) == (2, 1)
    assert run(trace, "maximum", 99).num_refused == 3


def test_pages_waste_less_than_a_block_for_each_decoding_request() -> None:
    """11 to 15 tokens in blocks of 16; then 16 and 17, which take one block and two."""
    assert pages_waste(make_trace("t", 1, [request(10, 5)]), 16) == pytest.approx(1 - 65 / 80)
    assert pages_waste(make_trace("t", 1, [request(15, 2)]), 16) == pytest.approx(1 - 33 / 48)
    assert pages_waste(make_trace("t", 1, [request(10, 5)]), 1) == 0


def test_the_waste_of_reservations_is_known_without_a_run() -> None:
    trace = make_trace("t", 1, [request(10, 5), request(200, 5)])

    waste = reservation_waste(trace, lambda each: 100)

    assert waste == pytest.approx(1 - 65 / 500), "what needs more is left out"


def test_the_closed_form_agrees_with_adding_up() -> None:
    lengths = [(7, 40), (16, 16), (31, 2), (1, 100)]
    tokens = [n for p, o in lengths for n in range(p + 1, p + o + 1)]
    slots = [-(-n // 16) * 16 for n in tokens]
    trace = make_trace("t", 1, [request(*each) for each in lengths])

    assert pages_waste(trace, 16) == pytest.approx(1 - sum(tokens) / sum(slots), rel=1e-12)


def test_a_cost_model_with_slower_steps_stretches_the_run() -> None:
    slower = replace(ONE_SECOND_STEPS.constants, step_overhead_s=2.0)
    trace = make_trace("t", 1, [request(10, 5)])

    result = replay_contiguous(
        trace,
        "oracle",
        model=small_model(slower),
        kv=SMALL_KV,
        num_slots=20,
        max_context_tokens=100,
        scheduler=config(token_budget=64, max_running_requests=8),
    )

    assert result.duration_s == pytest.approx(10.0)
