"""Requests that pool: computed like any prompt, ended with it, never sampled."""

import pytest
from tests.fakes import fake_embedding, make_request
from tests.unit.scheduler.helpers import Bench, sizes

from kokuban.core.errors import PromptTooLong
from kokuban.core.pooling import Pooling
from kokuban.core.request import FinishReason
from kokuban.core.step import Usage

POOLINGS: tuple[Pooling, ...] = ("last", "mean")


def usage_of(bench: Bench, name: str) -> Usage:
    usage = bench.last_event(name).usage
    assert usage is not None
    return usage


@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_prompt_ends_with_its_vector_in_the_step_that_computes_its_last_token(
    pooling: Pooling,
) -> None:
    bench = Bench(token_budget=64)
    request = make_request("r", 150, pooling=pooling)
    bench.add(request)

    plans = [bench.step() for _ in range(3)]

    assert [sizes(plan) for plan in plans] == [{"r": 64}, {"r": 64}, {"r": 22}]
    [event] = bench.events
    assert event.embedding == fake_embedding(request.prompt_token_ids)
    assert (event.tokens, event.finish) == ((), FinishReason.STOP)
    assert usage_of(bench, "r").output_tokens == 0
    assert not bench.scheduler.has_requests
    assert bench.manager.num_free == 100


def test_the_cache_is_read_for_the_last_token_and_not_for_a_mean_of_all() -> None:
    bench = Bench(prefix_cache=True)
    prompt = list(range(50))
    for name, pooling in (("first", "last"), ("again", "last"), ("mean", "mean")):
        bench.add(make_request(name, prompt=prompt, pooling=pooling))  # type: ignore[arg-type]
        bench.run()

    cached = {name: usage_of(bench, name).cached_tokens for name in ("first", "again", "mean")}
    assert cached == {"first": 0, "again": 49, "mean": 0}
    assert {event.embedding for event in bench.events} == {fake_embedding(prompt)}


def test_a_chat_finds_what_a_pooled_prompt_has_computed() -> None:
    bench = Bench(prefix_cache=True)
    prompt = list(range(50))
    bench.add(make_request("pooled", prompt=prompt, pooling="mean"))
    bench.run()

    bench.add(make_request("chat", prompt=prompt))
    bench.run()

    assert usage_of(bench, "chat").cached_tokens == 49
    bench.assert_text_as_alone("chat", 4)


@pytest.mark.parametrize(("pooling", "num_computed"), [("last", 50 + 2), ("mean", 150)])
def test_equal_prompts_of_a_group_share_what_they_may(pooling: Pooling, num_computed: int) -> None:
    """Of a mean each computes its own: a fork has no hidden states of what it shares."""
    bench = Bench(token_budget=512)
    request = make_request("r", 50, pooling=pooling)

    names = bench.add_choices(request, 3)
    bench.run()

    assert bench.runner.num_tokens == num_computed
    found = [bench.last_event(name).embedding for name in names]
    assert found == [fake_embedding(request.prompt_token_ids)] * 3
    assert bench.manager.num_free == 100


def test_a_mean_that_is_preempted_begins_again() -> None:
    """The sum of the first run is gone with its row: nothing is counted twice."""
    bench = Bench(10, token_budget=5, max_running=2, prefix_cache=True)
    bench.add(make_request("urgent", 10, max_tokens=60))
    bench.step(2)
    pooled = make_request("pooled", 128, pooling="mean", priority=1)

    bench.add(pooled)
    bench.run()

    assert usage_of(bench, "pooled").preemptions == 1
    embedding = bench.last_event("pooled").embedding
    assert embedding == fake_embedding(pooled.prompt_token_ids)
    bench.assert_text_as_alone("urgent", 60)


def test_a_prompt_may_fill_the_context_but_no_more() -> None:
    bench = Bench(max_context=64)
    bench.add(make_request("fits", 64, pooling="last"))
    bench.run()
    assert bench.finish("fits") is FinishReason.STOP

    with pytest.raises(
        PromptTooLong, match="65 tokens, but the context holds 64; shorten"
    ) as error:
        bench.add(make_request("long", 65, pooling="last"))
    assert "by 1 tokens" in str(error.value)


def test_one_that_fails_ends_alone() -> None:
    bench = Bench()
    bench.add(make_request("bad", 20, pooling="mean"), make_request("good", 20, pooling="mean"))
    bench.runner.failures[make_request("bad").id] = "no number"

    bench.run()

    assert bench.last_event("bad").error == "no number"
    assert bench.last_event("bad").embedding is None
    assert bench.finish("good") is FinishReason.STOP


def test_chats_and_prompts_share_a_step_and_no_text_changes() -> None:
    bench = Bench(token_budget=48)
    bench.add(make_request("chat", 20, max_tokens=6))
    for index in range(4):
        bench.add(make_request(f"p{index}", 40 + index, pooling=POOLINGS[index % 2]))

    bench.run()

    bench.assert_text_as_alone("chat", 6)
    for index in range(4):
        prompt = make_request(f"p{index}", 40 + index).prompt_token_ids
        assert bench.last_event(f"p{index}").embedding == fake_embedding(prompt)
