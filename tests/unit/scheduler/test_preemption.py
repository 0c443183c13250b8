"""What happens when blocks run out."""

import pytest
from tests.fakes import continuation, make_request
from tests.unit.scheduler.helpers import Bench, admitted, sizes

from kokuban.core.request import FinishReason, RequestId
from kokuban.core.step import Admission


def decoding_bench(num_blocks: int = 5, prefix_cache: bool = False) -> Bench:
    """Two requests of two blocks each that both need a third one in the same step."""
    bench = Bench(num_blocks, prefix_cache=prefix_cache)
    bench.add(make_request("a", 31, max_tokens=9), make_request("b", 31, max_tokens=9))
    bench.step()
    return bench


def test_the_request_that_came_last_gives_way() -> None:
    bench = decoding_bench(num_blocks=6)
    bench.manager.begin(RequestId("other"))
    bench.manager.grow(RequestId("other"), 32)
    bench.scheduler.check = lambda: None  # type: ignore[method-assign]

    assert sizes(bench.step()) == {"a": 1, "b": 1}
    plan = bench.step()

    assert sizes(plan) == {"a": 1}
    assert plan.preempted == ("b",)
    assert plan.ended == ("b",)
    assert plan.chunks[0].new_block_ids == ((3,),), "the tail of what b had"


def test_a_preempted_request_goes_on_where_it_was() -> None:
    bench = decoding_bench()
    bench.step(2)
    said = bench.tokens("b")
    assert len(said) == 2

    bench.run()

    [back] = [plan for plan in bench.plans[1:] if plan.admitted]
    request = bench.requests[RequestId("b")]
    assert back.admitted == (Admission(request, tuple(said)),)
    assert back.chunks[-1].token_ids == (*request.prompt_token_ids, *said)
    assert back.chunks[-1].start == 0
    assert back.chunks[-1].samples
    bench.assert_text_as_alone("a", 9)
    bench.assert_text_as_alone("b", 9)


def test_the_receipt_tells_of_preemptions_and_of_what_they_cost() -> None:
    bench = decoding_bench()
    for _ in range(20):
        if bench.scheduler.has_requests:
            bench.step(seconds=1.0)

    usage = bench.last_event("b").usage
    assert usage is not None
    # 31 prompt tokens and one output were computed when the third block was missing. Waiting
    # for the 7 steps that "a" still took counts as queue, computing again as decode. The clock
    # stood still in the first step, the prefill.
    assert usage.preemptions == 1
    assert usage.recomputed_tokens == 32
    assert (usage.queue_s, usage.prefill_s, usage.decode_s) == (7.0, 0.0, 8.0)
    assert bench.scheduler.stats().totals.recomputed_tokens == 32
    assert bench.scheduler.stats().totals.preemptions == 1
    # The tenant pays once for 2 x 31 prompt tokens, and twice for each of 2 x 9 output tokens.
    assert bench.scheduler._shares.served("") == 62 + 36


def test_a_step_that_preempted_admits_nobody() -> None:
    bench = decoding_bench()
    bench.step()
    bench.add(make_request("urgent", 1, priority=-1))

    plan = bench.step()

    assert plan.preempted == ("b",)
    assert plan.admitted == ()
    assert bench.pool.num_free == 2


def test_nobody_passes_a_preempted_request_of_the_same_priority() -> None:
    bench = decoding_bench()
    bench.step(2)
    bench.add(make_request("tiny", 1), make_request("urgent", 1, priority=-1))

    bench.run()

    order = [name for plan in bench.plans for name in admitted(plan)]
    assert order == ["a", "b", "urgent", "b", "tiny"]


def test_the_least_important_request_gives_way_even_if_it_came_first() -> None:
    bench = Bench(num_blocks=5)
    bench.add(make_request("low", 31, max_tokens=9, priority=1))
    bench.add(make_request("high", 31, max_tokens=9))
    bench.step(2)

    plan = bench.step()

    assert plan.preempted == ("low",)
    assert sizes(plan) == {"high": 1}


def test_a_request_that_finds_no_block_and_is_last_preempts_itself() -> None:
    bench = Bench(num_blocks=5)
    bench.add(make_request("a", 20, max_tokens=40), make_request("b", 31, max_tokens=9))
    bench.step(2)
    bench.manager.begin(RequestId("other"))
    bench.manager.grow(RequestId("other"), 16)
    bench.scheduler.check = lambda: None  # type: ignore[method-assign]

    plan = bench.step()

    assert plan.preempted == ("b",)
    assert sizes(plan) == {"a": 1}


def test_a_prefill_takes_a_shorter_chunk_when_blocks_are_short() -> None:
    bench = Bench(num_blocks=9, token_budget=48)
    bench.add(make_request("a", 15, max_tokens=60))
    bench.add(make_request("long", 96, max_tokens=3))

    bench.run()

    # 7 blocks fit beside one and its headroom; "a" then takes from what "long" was promised.
    assert [sizes(plan)["long"] for plan in bench.plans[:3]] == [33, 47, 16]
    assert bench.preemptions() == {"a": 0, "long": 0}
    bench.assert_text_as_alone("a", 60)
    bench.assert_text_as_alone("long", 3)


def test_a_newcomer_gets_no_block_that_a_prompt_under_way_will_need() -> None:
    bench = Bench(num_blocks=10, token_budget=32)
    bench.add(make_request("long", 128))
    bench.step()
    bench.add(make_request("new", 17))

    assert admitted(bench.step()) == []
    assert bench.pool.num_free == 6
    bench.run()
    assert bench.preemptions() == {"long": 0, "new": 0}


def test_a_newcomer_leaves_one_block_for_each_that_runs() -> None:
    bench = Bench(num_blocks=4)
    bench.add(make_request("a", 31, max_tokens=4))
    bench.step()
    bench.add(make_request("two blocks", 17), make_request("one block", 16, max_tokens=1))

    assert admitted(bench.step()) == ["one block"]


def test_newcomers_of_one_step_leave_a_block_for_each_of_them_too() -> None:
    bench = Bench(num_blocks=5, token_budget=100)
    bench.add(*(make_request(name, 16) for name in "abcde"))

    assert admitted(bench.step()) == ["a", "b", "c"]


def test_blocks_that_others_hold_already_cost_a_newcomer_nothing() -> None:
    bench = Bench(num_blocks=8, prefix_cache=True)
    first = make_request("a", 64)
    bench.add(first)
    bench.step(2)
    bench.add(make_request("b", prompt=(*first.prompt_token_ids, 1, 2)))

    assert bench.pool.num_free == 3
    assert sizes(bench.step()) == {"a": 1, "b": 2}
    assert bench.pool.num_free == 2


@pytest.mark.parametrize(
    ("priority", "preempted", "chunks"),
    [(1, ("first",), {"second": 1, "long": 31}), (0, (), {"first": 1, "second": 1})],
)
def test_a_prefill_without_blocks_preempts_only_less_important_requests(
    priority: int, preempted: tuple[str, ...], chunks: dict[str, int]
) -> None:
    """Otherwise it waits. A chunk that the victim had in this step already is dropped."""
    bench = Bench(num_blocks=12, token_budget=32)
    bench.add(make_request("first", 31, max_tokens=60, priority=priority))
    bench.step(2)
    bench.add(make_request("second", 20, max_tokens=60))
    bench.step()
    bench.add(make_request("long", 80, max_tokens=3))
    bench.step()
    other = RequestId("other")
    bench.manager.begin(other)
    bench.manager.grow(other, 16 * bench.pool.num_free)
    bench.scheduler.check = lambda: None  # type: ignore[method-assign]
    assert sizes(bench.step())["long"] == 2, "the rest of its last block"

    plan = bench.step()

    assert plan.preempted == preempted
    assert sizes(plan) == chunks


def test_scores_are_given_out_once_although_they_are_computed_twice() -> None:
    bench = Bench(num_blocks=5)
    bench.add(make_request("a", 31, max_tokens=9))
    request = make_request("b", 31, max_tokens=9, prompt_logprobs=0)
    bench.add(request)

    bench.run()

    assert bench.preemptions()["b"] == 1
    assert bench.scores("b") == list(request.prompt_token_ids[1:])
    bench.assert_text_as_alone("b", 9)


def test_a_preempted_request_can_be_cancelled() -> None:
    bench = decoding_bench()
    bench.step(2)

    assert bench.scheduler.cancel(RequestId("b"))
    bench.run()

    assert bench.pool.num_free == 5
    assert len(bench.tokens("b")) == 2


def test_a_preempted_request_does_not_expire() -> None:
    bench = Bench(num_blocks=5)
    bench.add(make_request("a", 31, max_tokens=9))
    bench.add(make_request("b", 31, max_tokens=9, deadline_s=4.0))

    while bench.scheduler.has_requests:
        bench.step(seconds=1.0)

    assert bench.preemptions()["b"] == 1
    assert bench.finish("b") is FinishReason.LENGTH


@pytest.mark.parametrize("token_budget", [8, 64])
@pytest.mark.parametrize("prefix_cache", [False, True])
def test_four_streams_in_a_pool_for_two_and_a_half(token_budget: int, prefix_cache: bool) -> None:
    """Keeps B57 out: docs/bugbank.md."""
    bench = Bench(num_blocks=13, token_budget=token_budget, prefix_cache=prefix_cache)
    bench.add(*(make_request(name, 16, max_tokens=64) for name in "abcd"))

    bench.run()

    assert sum(bench.preemptions().values()) > 0
    assert max(bench.preemptions().values()) < 20
    for name in "abcd":
        bench.assert_text_as_alone(name, 64)
        assert bench.finish(name) is FinishReason.LENGTH
    assert bench.pool.num_free == 13


def test_64_streams_of_mixed_lengths_in_a_pool_too_small_for_them() -> None:
    bench = Bench(num_blocks=16, token_budget=64, max_running=64)
    lengths = {f"r{i}": (1 + i * 37 % 60, 1 + i * 13 % 50) for i in range(64)}
    for name, (num_prompt, max_tokens) in lengths.items():
        bench.add(make_request(name, num_prompt, max_tokens=max_tokens))

    bench.run()

    for name, (_, max_tokens) in lengths.items():
        bench.assert_text_as_alone(name, max_tokens)
    assert sum(bench.preemptions().values()) > 0
    assert bench.pool.num_free == 16


def test_preemption_in_window_groups_changes_no_text() -> None:
    bench = Bench(num_blocks=24, windows=(None, 40), max_running=6)
    bench.add(*(make_request(f"r{i}", 20 + i, max_tokens=60) for i in range(6)))

    bench.run()

    assert sum(bench.preemptions().values()) > 0
    for index in range(6):
        bench.assert_text_as_alone(f"r{index}", 60)


def test_cached_blocks_make_a_return_cheap() -> None:
    bench = decoding_bench(prefix_cache=True)
    bench.run()

    usage = bench.last_event("b").usage
    assert usage is not None
    assert usage.preemptions == 1
    # Its two full blocks were free but nobody had taken them yet.
    assert usage.recomputed_tokens == 0
    assert usage.cached_tokens == 0
    bench.assert_text_as_alone("b", 9)


def test_a_second_request_computes_only_what_is_new() -> None:
    bench = Bench(prefix_cache=True)
    first = make_request("a", 40, max_tokens=10)
    bench.add(first)
    bench.run()
    said = continuation(first.prompt_token_ids, 10)
    follow_up = (*first.prompt_token_ids, *said, 7, 8, 9)
    bench.add(make_request("b", prompt=follow_up))
    bench.add(make_request("scored", prompt=follow_up, prompt_logprobs=0))

    plan = bench.step()
    bench.run()

    # 49 tokens of the first one were computed: its last one never was.
    assert sizes(plan) == {"b": 4, "scored": 53}
    usage = bench.last_event("b").usage
    assert usage is not None
    assert usage.cached_tokens == 49
    assert bench.scheduler.stats().totals.cached_tokens == 49
    assert bench.scores("scored") == list(follow_up[1:])
    for name in ("b", "scored"):
        bench.assert_text_as_alone(name, 4)
