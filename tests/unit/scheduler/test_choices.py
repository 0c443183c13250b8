"""Choices of one prompt through whole schedules: one computes it, the others fork."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.fakes import make_request
from tests.unit.scheduler.helpers import Bench, admitted, sizes

from kokuban.core.request import FinishReason, Request, RequestId


def cached_and_forked(bench: Bench, name: str) -> tuple[int, int]:
    usage = bench.last_event(name).usage
    assert usage is not None
    return usage.cached_tokens, usage.forked_tokens


@pytest.mark.parametrize("prefix_cache", [False, True])
@pytest.mark.parametrize("windows", [(None,), (None, 20, 300)])
def test_eight_choices_of_1000_tokens_compute_1007(
    windows: tuple[int | None, ...], prefix_cache: bool
) -> None:
    bench = Bench(600, token_budget=300, windows=windows, prefix_cache=prefix_cache)
    names = bench.add_choices(make_request("r", 1000, max_tokens=30), 8)

    while not bench.events:
        bench.step()
    assert bench.scheduler.stats().waiting == 7
    plan = bench.step()

    assert bench.runner.num_tokens == 1000 + 7 + 1  # The leader's next token was computed, too.
    assert sizes(plan) == dict.fromkeys(names, 1)
    assert [chunk.start for chunk in plan.chunks] == [1000, *[999] * 7]
    if windows == (None,):
        # 62 whole blocks are shared by all, and each has its own last one.
        assert bench.pool.num_blocks - bench.pool.num_free == 62 + 8
    assert len(plan.copies) == 7 * len(windows)
    assert len({copy.source for copy in plan.copies}) == len(windows)
    bench.run()
    for name in names:
        bench.assert_text_as_alone(name, 30)
        assert cached_and_forked(bench, name) == (0, 0 if name == "r-0" else 999)
    assert bench.pool.num_free == bench.pool.num_blocks
    totals = bench.scheduler.stats().totals
    assert (totals.prompt_tokens, totals.cached_tokens, totals.forked_tokens) == (
        1007, 0, 7 * 999,
    )  # fmt: skip
    assert bench.runner.num_tokens == 1007 + 8 * 29


@pytest.mark.parametrize("num_tokens", [2, 15, 16, 17, 32, 33, 51, 52])
@pytest.mark.parametrize("max_prefill", [None, 1, 7])
def test_choices_say_what_they_say_alone_at_every_length(
    num_tokens: int, max_prefill: int | None
) -> None:
    bench = Bench(windows=(None, 20), max_prefill_tokens=max_prefill)
    names = bench.add_choices(make_request("r", num_tokens, max_tokens=20), 5)

    bench.run()

    for name in names:
        bench.assert_text_as_alone(name, 20)
    assert bench.runner.num_tokens == num_tokens + 4 + 5 * 19


def test_what_the_cache_had_for_the_prompt_is_told_of_every_choice() -> None:
    bench = Bench(prefix_cache=True)
    bench.add(make_request("first", prompt=range(20), max_tokens=1))
    bench.run()
    names = bench.add_choices(make_request("r", prompt=range(40)), 3)

    bench.run()

    assert [cached_and_forked(bench, name) for name in names] == [(20, 0), (20, 39), (20, 39)]
    totals = bench.scheduler.stats().totals
    assert (totals.prompt_tokens, totals.cached_tokens) == (20 + 40 + 2, 20)
    assert totals.forked_tokens == 2 * 39


@pytest.mark.parametrize("prefix_cache", [False, True])
@pytest.mark.parametrize("max_tokens", [1, 2])
def test_a_leader_that_ends_at_once_is_forked_from_all_the_same(
    max_tokens: int, prefix_cache: bool
) -> None:
    bench = Bench(windows=(None, 20), prefix_cache=prefix_cache)
    names = bench.add_choices(make_request("r", 51, max_tokens=max_tokens), 6)

    bench.run()

    assert len(bench.plans) == 1 + max_tokens
    assert bench.runner.num_tokens == 51 + 5 + 6 * (max_tokens - 1)
    for name in names:
        bench.assert_text_as_alone(name, max_tokens)
    assert bench.pool.num_free == bench.pool.num_blocks


def test_choices_of_a_scored_prompt_are_all_told_its_logprobs() -> None:
    for max_tokens in (0, 3):
        bench = Bench(prefix_cache=True, max_prefill_tokens=16)
        request = make_request("r", 40, max_tokens=max_tokens, prompt_logprobs=0)
        names = bench.add_choices(request, 3)
        bench.run()

        for name in names:
            assert bench.scores(name) == list(request.prompt_token_ids[1:])
            bench.assert_text_as_alone(name, max_tokens)
            assert bench.finish(name) is FinishReason.LENGTH
        assert bench.runner.num_tokens == 40 + 2 + 3 * max(0, max_tokens - 1)


def cancel_leader(bench: Bench) -> None:
    assert bench.scheduler.cancel(RequestId("r-0"))


def fail_leader(bench: Bench) -> None:
    bench.runner.failures[RequestId("r-0")] = "not finite"
    bench.step()
    assert bench.finish("r-0") is FinishReason.ERROR


@pytest.mark.parametrize("lose", [cancel_leader, fail_leader])
@pytest.mark.parametrize("num_steps", [0, 1])
def test_when_the_leader_is_lost_the_next_one_leads(
    num_steps: int, lose: Callable[[Bench], None]
) -> None:
    bench = Bench(token_budget=50)
    names = bench.add_choices(make_request("r", 100, max_tokens=5), 4)
    for _ in range(num_steps):
        bench.step()
    lose(bench)
    lost = bench.runner.num_tokens

    plan = bench.step()
    bench.run()

    assert admitted(plan) == ["r-1"]
    assert bench.runner.num_tokens - lost == 100 + 2 + 3 * 4
    for name in names[1:]:
        bench.assert_text_as_alone(name, 5)


def test_a_leader_cancelled_after_the_prompt_is_still_forked_from() -> None:
    bench = Bench()
    names = bench.add_choices(make_request("r", 40, max_tokens=5), 3)
    bench.step()
    bench.scheduler.cancel(RequestId("r-0"))
    bench.scheduler.check()

    bench.run()

    assert bench.runner.num_tokens == 40 + 2 + 2 * 4
    for name in names[1:]:
        bench.assert_text_as_alone(name, 5)


def test_when_all_are_cancelled_nothing_is_kept() -> None:
    bench = Bench()
    names = bench.add_choices(make_request("r", 40), 3)
    bench.step()

    for name in names:
        bench.scheduler.cancel(RequestId(name))
        bench.scheduler.check()

    assert bench.pool.num_free == bench.pool.num_blocks
    assert not bench.scheduler.has_requests


def test_the_id_of_a_leader_that_ended_may_be_used_at_once() -> None:
    bench = Bench()
    bench.add_choices(make_request("r", 40), 2)
    bench.step()
    bench.scheduler.cancel(RequestId("r-0"))
    bench.events.clear()

    bench.add(make_request("r-0", prompt=range(20), max_tokens=2))
    bench.run()

    bench.assert_text_as_alone("r-0", 2)
    bench.assert_text_as_alone("r-1", 4)


def test_a_preempted_leader_comes_back_and_leads() -> None:
    """The first request grows into the blocks of the leader, which has computed half."""
    bench = Bench(7, token_budget=17)
    bench.add(make_request("old", 16, max_tokens=40))
    bench.step()
    names = bench.add_choices(make_request("r", 60, max_tokens=2), 3)

    bench.run()

    assert bench.preemptions()["old"] == 0
    for name in names:
        bench.assert_text_as_alone(name, 2)
    bench.assert_text_as_alone("old", 40)


@pytest.mark.parametrize("prefix_cache", [False, True])
def test_a_pool_too_small_for_all_choices_serves_them_in_turn(prefix_cache: bool) -> None:
    bench = Bench(8, prefix_cache=prefix_cache)
    names = bench.add_choices(make_request("r", 60, max_tokens=40), 6)

    bench.run()

    for name in names:
        bench.assert_text_as_alone(name, 40)
    assert bench.scheduler.stats().totals.forked_tokens > 0
    assert bench.pool.num_free == 8


def test_one_seat_serves_choices_one_after_the_other() -> None:
    bench = Bench(max_running=1)
    names = bench.add_choices(make_request("r", 60, max_tokens=3), 3)

    bench.run()

    for name in names:
        bench.assert_text_as_alone(name, 3)
    # The first ended with its blocks kept for one step, and so did the second.
    assert bench.runner.num_tokens == 60 + 2 + 3 * 2


def test_held_choices_hide_nobody_and_are_no_reason_to_stop_admitting() -> None:
    bench = Bench(token_budget=64, max_prefill_tokens=40, max_skips=0, max_running=50)
    bench.add_choices(make_request("r", 60), 40)
    bench.step()
    bench.add(make_request("behind", 10), make_request("other", 10, tenant="other"))

    plan = bench.step()

    # 39 choices stand before the new requests, more than the scheduler looks through.
    assert sorted(admitted(plan)) == ["behind", "other"]
    assert len(admitted(bench.step())) == 39


def test_a_deadline_is_met_when_the_first_choice_begins() -> None:
    bench = Bench(token_budget=10)
    names = bench.add_choices(make_request("r", 60, deadline_s=1.0), 3)

    bench.step(8, seconds=1.0)
    bench.run()

    for name in names:
        bench.assert_text_as_alone(name, 4)


def test_a_deadline_that_passes_before_the_first_begins_ends_all() -> None:
    bench = Bench()
    names = bench.add_choices(make_request("r", 60, deadline_s=1.0), 3)
    bench.clock.advance(2.0)

    events = bench.scheduler.expire(bench.clock())
    bench.scheduler.check()

    assert [event.request_id for event in events] == names
    assert not bench.scheduler.has_requests


@pytest.mark.parametrize(
    "change",
    [
        {"tenant": "other"},
        {"cache_scope": "salt"},
        {"prompt_token_ids": tuple(range(7, 47))},
        {"priority": 1},
    ],
)
def test_requests_that_may_not_share_do_not_fork(change: dict[str, object]) -> None:
    bench = Bench()
    first = make_request("a", prompt=range(40))
    second: Request = replace(first, id=RequestId("b"), **change)  # type: ignore[arg-type]
    bench.scheduler.add_group([first, second], 0.0)
    bench.requests.update({first.id: first, second.id: second})

    bench.run()

    assert bench.scheduler.stats().totals.forked_tokens == 0
    bench.assert_text_as_alone("a", 4)
    bench.assert_text_as_alone("b", 4)
