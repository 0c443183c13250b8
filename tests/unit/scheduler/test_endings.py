"""How a request ends, and what its receipt says."""

import pytest
from tests.fakes import continuation, make_request
from tests.unit.scheduler.helpers import Bench, admitted, sizes

from kokuban.core.errors import Overloaded, PromptTooLong, RequestError
from kokuban.core.request import FinishReason, RequestId
from kokuban.core.step import TokenEvent, Usage

R = RequestId("r")


def test_an_end_token_ends_the_text_and_is_part_of_it() -> None:
    said = continuation(make_request().prompt_token_ids, 4)
    bench = Bench()
    bench.add(make_request(max_tokens=None, end_token_ids=[said[2]]))

    bench.run()

    assert bench.tokens("r") == said[:3]
    assert bench.finish("r") is FinishReason.STOP


def test_an_end_token_does_not_end_the_text_up_to_min_tokens() -> None:
    said = continuation(make_request().prompt_token_ids, 8)
    bench = Bench()
    bench.add(make_request(max_tokens=8, min_tokens=3, end_token_ids=[said[2], said[5]]))

    bench.run()

    assert bench.tokens("r") == said[:6]
    assert bench.finish("r") is FinishReason.STOP


def test_the_last_token_of_max_tokens_may_still_be_an_end_token() -> None:
    said = continuation(make_request().prompt_token_ids, 2)
    bench = Bench()
    bench.add(make_request(max_tokens=2, end_token_ids=[said[1]]))

    bench.run()

    assert bench.finish("r") is FinishReason.STOP


@pytest.mark.parametrize("max_tokens", [60, 10**6, None])
def test_the_text_ends_with_the_context(max_tokens: int | None) -> None:
    bench = Bench(max_context=64)
    bench.add(make_request(num_tokens=10, max_tokens=max_tokens))

    bench.run()

    bench.assert_text_as_alone("r", 54)
    assert bench.finish("r") is FinishReason.LENGTH


def test_prompts_around_the_limit() -> None:
    """Keeps B39 out: docs/bugbank.md."""
    bench = Bench(max_context=64)
    bench.add(make_request("stream", 10, max_tokens=40))
    for turn in range(20):
        bench.step()
        bench.add(make_request(f"fits{turn}", 63, max_tokens=1))
        for num_tokens in (64, 65):
            with pytest.raises(PromptTooLong, match=f"has {num_tokens} tokens, .* holds 64"):
                bench.add(make_request(f"{num_tokens}-{turn}", num_tokens, max_tokens=1))

    bench.run()

    for turn in range(20):
        bench.assert_text_as_alone(f"fits{turn}", 1)
    bench.assert_text_as_alone("stream", 40)
    assert bench.pool.num_free == 100


def test_a_prompt_that_never_fits_the_pool_is_refused_and_blocks_nobody() -> None:
    """Keeps B37 out: docs/bugbank.md."""
    bench = Bench(num_blocks=8)
    assert bench.scheduler.max_context_tokens == 128

    with pytest.raises(PromptTooLong, match="has 200 tokens, but the context holds 128"):
        bench.add(make_request("large", 200))
    bench.add(make_request("small", 5))

    assert sizes(bench.step()) == {"small": 5}
    bench.scheduler.check()


def test_a_request_that_outgrows_the_pool_ends_with_length() -> None:
    bench = Bench(num_blocks=8)
    bench.add(make_request(num_tokens=100, max_tokens=200))

    bench.run()

    bench.assert_text_as_alone("r", 28)
    assert bench.finish("r") is FinishReason.LENGTH
    assert bench.preemptions() == {"r": 0}


def test_a_failed_chunk_ends_its_request_alone() -> None:
    bench = Bench()
    bench.add(make_request("good"), make_request("bad"))
    bench.step()
    bench.runner.failures[RequestId("bad")] = "the logits are not finite"

    bench.run()

    event = bench.last_event("bad")
    assert event.finish is FinishReason.ERROR
    assert event.error == "the logits are not finite"
    assert event.usage is not None
    assert event.usage.output_tokens == 1
    bench.assert_text_as_alone("good", 4)
    assert bench.pool.num_free == 100
    assert bench.scheduler.stats().totals.failed_requests == 1


def test_a_prompt_to_be_scored_only_ends_without_a_token() -> None:
    bench = Bench(token_budget=16)
    request = make_request(num_tokens=40, max_tokens=0, prompt_logprobs=2)
    bench.add(request)

    bench.run()

    assert [len(event.prompt_logprobs) for event in bench.events] == [16, 16, 7]
    assert bench.scores("r") == list(request.prompt_token_ids[1:])
    assert not any(chunk.samples for plan in bench.plans for chunk in plan.chunks)
    assert bench.tokens("r") == []
    assert bench.finish("r") is FinishReason.LENGTH


def test_a_prompt_to_be_scored_only_may_fill_the_context() -> None:
    bench = Bench(max_context=64)
    bench.add(make_request(num_tokens=64, max_tokens=0, prompt_logprobs=0))

    bench.run()
    assert len(bench.scores("r")) == 63

    with pytest.raises(PromptTooLong):
        bench.add(make_request(num_tokens=65, max_tokens=0, prompt_logprobs=0))


def test_a_scored_prompt_of_one_token_has_no_scores() -> None:
    bench = Bench()
    bench.add(make_request(num_tokens=1, max_tokens=0, prompt_logprobs=0))

    bench.run()

    [event] = bench.events
    assert event.prompt_logprobs == ()
    assert event.finish is FinishReason.LENGTH


def test_scores_and_text_come_from_one_request() -> None:
    bench = Bench(token_budget=16)
    request = make_request(num_tokens=20, max_tokens=3, prompt_logprobs=0)
    bench.add(request)

    bench.run()

    assert bench.scores("r") == list(request.prompt_token_ids[1:])
    bench.assert_text_as_alone("r", 3)


def test_a_cancelled_request_frees_its_blocks_at_once() -> None:
    bench = Bench()
    bench.add(make_request(num_tokens=40))
    bench.step()
    assert bench.pool.num_free == 97

    assert bench.scheduler.cancel(R)

    assert bench.pool.num_free == 100
    assert not bench.scheduler.has_requests
    assert not bench.scheduler.cancel(R)
    bench.add(make_request("next"))
    assert bench.step().ended == ("r",)


def test_a_waiting_request_that_is_cancelled_is_never_computed() -> None:
    bench = Bench(max_running=1)
    bench.add(make_request("a", max_tokens=3), make_request("b"), make_request("c"))
    bench.step()

    bench.scheduler.cancel(RequestId("b"))
    assert bench.scheduler.stats().waiting == 1
    bench.run()

    assert bench.tokens("b") == []
    assert "b" not in {name for plan in bench.plans for name in admitted(plan)}
    assert bench.plans[3].ended == ("a",)
    assert admitted(bench.plans[3]) == ["c"]


def test_a_request_cancelled_while_its_step_runs_has_no_event() -> None:
    bench = Bench()
    bench.add(make_request("a"), make_request("b"))
    plan = bench.scheduler.plan(0.0)
    assert plan is not None
    result = bench.runner.run(plan)

    bench.scheduler.cancel(RequestId("a"))
    events = bench.scheduler.commit(plan, result, 0.0)

    assert [event.request_id for event in events] == ["b"]
    bench.scheduler.check()


def test_an_id_may_be_used_again_while_its_old_step_runs() -> None:
    bench = Bench()
    bench.add(make_request("a", 5))
    plan = bench.scheduler.plan(0.0)
    assert plan is not None
    result = bench.runner.run(plan)
    bench.scheduler.cancel(RequestId("a"))
    bench.add(make_request("a", 7))

    assert bench.scheduler.commit(plan, result, 0.0) == []
    bench.run()

    bench.assert_text_as_alone("a", 4)
    assert bench.plans[0].ended == ("a",)


def test_an_id_in_use_is_refused() -> None:
    bench = Bench()
    bench.add(make_request("a"))

    with pytest.raises(RequestError, match="the request id 'a' is in use"):
        bench.add(make_request("a"))

    bench.run()
    bench.add(make_request("a"))


def test_an_empty_prompt_is_refused() -> None:
    """Keeps B36 out: docs/bugbank.md."""
    with pytest.raises(RequestError, match="the prompt has no tokens"):
        Bench().add(make_request(prompt=[]))


def test_a_group_is_added_as_a_whole_or_not_at_all() -> None:
    bench = Bench(max_running=1, max_waiting=2, max_context=64)
    requests = [make_request(name) for name in "abcd"]

    with pytest.raises(
        RequestError, match="4 choices or inputs at once are more than the 1 that may run and the 2"
    ):
        bench.scheduler.add_group(requests, 0.0)
    with pytest.raises(PromptTooLong):
        bench.scheduler.add_group([requests[0], make_request("x", 99)], 0.0)
    with pytest.raises(RequestError, match="in use"):
        bench.scheduler.add_group([requests[0], requests[0]], 0.0)
    bench.scheduler.add_group(requests[:2], 0.0)
    with pytest.raises(Overloaded):
        bench.scheduler.add_group(requests[2:], 0.0)

    assert bench.scheduler.stats().waiting == 2
    bench.scheduler.check()


def test_a_full_queue_says_when_to_come_back() -> None:
    bench = Bench(max_running=1, max_waiting=2)
    bench.add(*(make_request(name, max_tokens=2) for name in "abc"))
    bench.step()
    with pytest.raises(Overloaded, match=r"1 requests run and 2 wait .* 1 and 2") as caught:
        bench.add(make_request("d"))
    assert caught.value.retry_after_s == 1

    bench.step(2, seconds=80.0)
    bench.add(make_request("e"))
    with pytest.raises(Overloaded) as caught:
        bench.add(make_request("f"))

    # One interval of 80 s has been seen, with a weight of 0.2.
    assert caught.value.retry_after_s == 16


def test_an_idle_engine_takes_a_burst_that_it_can_begin_at_once() -> None:
    bench = Bench(max_running=4, max_waiting=1)

    bench.add(*(make_request(name) for name in "abcde"))

    with pytest.raises(Overloaded):
        bench.add(make_request("f"))
    assert len(bench.step().admitted) == 4


def test_a_request_that_waits_past_its_deadline_ends_with_an_error() -> None:
    bench = Bench(max_running=1)
    bench.add(make_request("a", max_tokens=5))
    bench.add(make_request("b", deadline_s=2.0, arrival_s=0.5), make_request("c", deadline_s=9.0))

    bench.step(2, seconds=1.0)
    assert bench.events[-1].request_id == "a", "at the deadline itself it may still begin"
    bench.step(1, seconds=1.0)
    bench.step()

    event = bench.last_event("b")
    assert event == TokenEvent(
        RequestId("b"),
        (),
        finish=FinishReason.ERROR,
        error="the request waited 2.500 s, and its deadline was 1.500 s after its arrival; allow "
        "more time or try when fewer wait",
        usage=Usage(prompt_tokens=5, output_tokens=0, queue_s=2.5),
    )
    bench.run()
    bench.assert_text_as_alone("c", 4)


def test_a_request_that_has_begun_has_met_its_deadline() -> None:
    bench = Bench()
    bench.add(make_request(deadline_s=1.0, max_tokens=5))

    for _ in range(5):
        bench.step(seconds=1.0)

    assert bench.finish("r") is FinishReason.LENGTH


def test_the_receipt_splits_the_time_of_a_request() -> None:
    bench = Bench(token_budget=8, max_running=1)
    bench.clock.advance(100.0)
    bench.add(make_request("first", 8, max_tokens=2, arrival_s=100.0))
    bench.add(make_request("second", 20, max_tokens=3, arrival_s=100.0))

    for _ in range(7):
        bench.step(seconds=1.0)

    # first: one step of prefill, one of decode; second: three and two.
    assert bench.last_event("first").usage == Usage(
        prompt_tokens=8, output_tokens=2, queue_s=0.0, prefill_s=1.0, decode_s=1.0
    )
    assert bench.last_event("second").usage == Usage(
        prompt_tokens=20, output_tokens=3, queue_s=2.0, prefill_s=3.0, decode_s=2.0
    )


def test_the_totals_count_what_happened() -> None:
    bench = Bench()
    bench.add(make_request("a", 10, max_tokens=2), make_request("b", 7, max_tokens=3))
    bench.run()

    stats = bench.scheduler.stats()

    assert (stats.running, stats.waiting) == (0, 0)
    assert stats.totals.steps == 3
    assert stats.totals.prompt_tokens == 17
    assert stats.totals.output_tokens == 5
    assert stats.totals.preemptions == stats.totals.failed_requests == 0
    bench.add(make_request("c"))
    bench.step()
    assert stats.totals.steps == 3, "a snapshot does not change"


def test_the_first_token_brings_a_receipt_for_those_who_stop_early() -> None:
    """Whoever finds a stop string in the text cancels the request and sees no last event."""
    bench = Bench()
    bench.add(make_request(num_tokens=20, max_tokens=3))

    bench.run()

    first, second, last = bench.events
    assert first.usage == Usage(prompt_tokens=20, output_tokens=1)
    assert second.usage is None
    assert last.usage == Usage(prompt_tokens=20, output_tokens=3)
