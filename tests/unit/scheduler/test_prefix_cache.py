"""Hits of the prefix cache through whole schedules: what is computed, and the right text."""

from typing import Any

import pytest
from tests.fakes import continuation, make_request
from tests.unit.scheduler.helpers import Bench, admitted, sizes

from kokuban.core.request import Request, RequestId
from kokuban.core.step import Admission, Chunk, ChunkOutput, SampledToken, StepPlan, StepResult
from kokuban.kvcache.manager import Manager


class CountingRunner:
    """Says the same token always and counts what it is made to compute: for long sequences."""

    num_tokens = 0

    def run(self, plan: StepPlan) -> StepResult:
        self.num_tokens += plan.num_tokens
        said = ChunkOutput((SampledToken(7),))
        return StepResult(
            plan.step, {each.request_id: said for each in plan.chunks if each.samples}
        )


def agent_loop(bench: Bench, *, start: int, new: int, output: int, turns: int) -> list[int]:
    """Turns of a growing conversation; returns the prompt tokens that each of them computed."""
    history = list(range(start))
    computed = []
    for turn in range(turns):
        history += range(100_000 + turn * new, 100_000 + (turn + 1) * new)
        before = bench.runner.num_tokens
        bench.add(make_request(f"turn {turn}", prompt=history, max_tokens=output))
        bench.run()
        said = bench.tokens(f"turn {turn}")
        assert len(said) == output
        # Each new token but the last was computed once, beside the prompt.
        computed.append(bench.runner.num_tokens - before - (output - 1))
        usage = bench.last_event(f"turn {turn}").usage
        assert usage is not None
        assert usage.cached_tokens == len(history) - computed[-1]
        if output > 1:
            history += said
    return computed


def agent_bench(*, partial_tails: bool) -> Bench:
    bench = Bench(800, token_budget=20_000, prefix_cache=True, partial_tails=partial_tails)
    bench.runner = CountingRunner()  # type: ignore[assignment]
    return bench


@pytest.mark.parametrize(("partial_tails", "total"), [(False, 7_104), (True, 7_009)])
def test_ten_turns_of_an_agent_compute_what_planning_t22_says(
    partial_tails: bool, total: int
) -> None:
    bench = agent_bench(partial_tails=partial_tails)

    computed = agent_loop(bench, start=2000, new=500, output=100, turns=10)

    # The last token of an answer was sampled and never computed: 500 new ones and that one.
    assert sum(computed) == total
    assert not partial_tails or computed == [2500, *[501] * 9]


@pytest.mark.parametrize(("partial_tails", "total"), [(False, 10_040), (True, 10_000)])
def test_ten_units_of_1000_tokens_compute_what_planning_t23_says(
    partial_tails: bool, total: int
) -> None:
    bench = agent_bench(partial_tails=partial_tails)

    computed = agent_loop(bench, start=0, new=1000, output=1, turns=10)

    assert computed == ([1000] * 10 if partial_tails else [1000, 1008] * 5)
    assert sum(computed) == total


def test_what_a_cancelled_request_computed_is_found() -> None:
    bench = Bench(prefix_cache=True)
    first = make_request("a", 20, max_tokens=100)
    bench.add(first)
    bench.step(14)
    bench.scheduler.cancel(first.id)
    said = bench.tokens("a")

    bench.add(make_request("b", prompt=[*first.prompt_token_ids, *said, 7]))
    plan = bench.step()

    # 20 tokens of the prompt and 13 of the 14 that it said.
    assert len(said) == 14
    assert plan.chunks[0].start == 33
    assert sizes(plan) == {"b": 2}


def test_what_a_preempted_request_computed_is_found_up_to_its_last_token() -> None:
    bench = Bench(3, prefix_cache=True, token_budget=64)
    bench.add(make_request("a", 14, max_tokens=10), make_request("b", 14, max_tokens=8))
    bench.run()

    assert bench.preemptions() == {"a": 0, "b": 1}
    usage = bench.last_event("b").usage
    assert usage is not None
    assert usage.recomputed_tokens == 0
    bench.assert_text_as_alone("a", 10)
    bench.assert_text_as_alone("b", 8)


def test_the_source_of_a_copy_may_be_handed_out_in_the_same_step() -> None:
    """The copy runs before the step's writes, so the newcomer's tokens do not reach it.

    The scheduler leaves a block free for each request that it begins; the manager needs none.
    """
    bench = Bench(4, prefix_cache=True)
    first = make_request("a", 10, max_tokens=1)
    bench.add(first)
    bench.run()
    same = make_request("b", prompt=[*first.prompt_token_ids, 1, 2])
    other = make_request("c", 40)
    manager, chain = bench.manager, bench.manager.make_chain("")
    assert chain is not None

    def chunk(request: Request, start: int) -> Chunk:
        tokens = request.prompt_token_ids
        return Chunk(request.id, start, tokens[start:], manager.grow(request.id, len(tokens)), True)

    manager.begin(same.id, chain, manager.find_cached_prefix(chain, same.prompt_token_ids))
    manager.begin(other.id)
    chunks = (chunk(same, 10), chunk(other, 0))
    admitted = (Admission(same), Admission(other))
    moves = manager.take_moves()
    result = bench.runner.run(StepPlan(1, chunks, admitted, ended=(first.id,), moves=moves))

    assert moves == ((0, 1),)
    assert chunks[1].new_block_ids == ((2, 3, 0),)
    for request in (same, other):
        said = [token.token_id for token in result.outputs[request.id].tokens]
        assert said == continuation(request.prompt_token_ids, 1)


def test_a_tail_is_given_up_when_its_source_would_take_the_last_block() -> None:
    bench = Bench(1, prefix_cache=True)
    bench.add(make_request("a", prompt=range(10), max_tokens=1))
    bench.run()

    bench.add(make_request("b", prompt=range(12), max_tokens=1))
    plan = bench.step()

    assert plan.copies == ()
    assert sizes(plan) == {"b": 12}


def test_tenants_and_salts_never_share() -> None:
    bench = Bench(prefix_cache=True)
    prompt = range(48)
    cached = []
    for index, (tenant, scope) in enumerate(
        [("t", "one"), ("t", "two"), ("t", "one"), ("t", ""), ("u", "one"), ("u", ""), ("t", "")]
    ):
        name = f"r{index}"
        bench.add(make_request(name, prompt=prompt, tenant=tenant, cache_scope=scope))
        bench.run()
        usage = bench.last_event(name).usage
        assert usage is not None
        cached.append(usage.cached_tokens)

    assert cached == [0, 0, 47, 0, 0, 0, 47]


@pytest.mark.parametrize("num_tokens", [16, 32, 48, 31, 33])
def test_a_whole_prompt_in_the_cache_leaves_one_token_to_compute(num_tokens: int) -> None:
    """Bugbank B59."""
    bench = Bench(prefix_cache=True)
    prompt = make_request("a", num_tokens).prompt_token_ids
    found = []
    for name, tokens in [("a", prompt), ("b", prompt), ("c", (*prompt, 9))]:
        bench.add(make_request(name, prompt=tokens, max_tokens=4))
        bench.run()
        usage = bench.last_event(name).usage
        assert usage is not None
        found.append(usage.cached_tokens)
        bench.assert_text_as_alone(name, 4)

    assert found == [0, num_tokens - 1, num_tokens]


@pytest.mark.parametrize("chunk", [1, 7, 16, 64])
def test_a_prompt_that_is_warm_up_to_any_token_says_the_same(chunk: int) -> None:
    """Bugbank B60; the small pool evicts between the requests."""
    prompt = make_request("p", 60).prompt_token_ids
    for num_warm in range(1, 61):
        bench = Bench(6, prefix_cache=True, token_budget=64, max_prefill_tokens=chunk)
        bench.add(make_request("warm", prompt=prompt[:num_warm], max_tokens=1))
        bench.run()
        bench.add(make_request("full", prompt=prompt, max_tokens=4))
        bench.run()
        usage = bench.last_event("full").usage
        assert usage is not None
        assert usage.cached_tokens == min(num_warm, 59)
        bench.assert_text_as_alone("full", 4)


def test_a_prompt_that_is_scored_is_computed_whole() -> None:
    """Bugbank B61."""
    bench = Bench(prefix_cache=True, token_budget=64, max_prefill_tokens=8)
    for name in ("cold", "warm"):
        bench.add(make_request(name, prompt=range(40), prompt_logprobs=0, max_tokens=1))
        bench.run()
        assert bench.scores(name) == list(range(1, 40))
        usage = bench.last_event(name).usage
        assert usage is not None
        assert usage.cached_tokens == 0


def test_a_request_that_waits_is_looked_up_again_only_when_the_index_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(10, prefix_cache=True)
    lookups: list[int] = []
    original = Manager.find_cached_prefix

    def counted(self: Manager, *args: Any, **options: Any) -> object:
        lookups.append(len(bench.plans))
        return original(self, *args, **options)

    monkeypatch.setattr(Manager, "find_cached_prefix", counted)
    bench.add(make_request("a", 33, max_tokens=50))
    bench.step()
    bench.add(make_request("big", 130, max_tokens=1))
    bench.step(40)

    assert admitted(bench.plans[0]) == ["a"]
    assert not any(plan.admitted for plan in bench.plans[1:])
    # Looked up when it came, and whenever a block of "a" was full: at 48 and 64 tokens.
    assert lookups == [0, 1, 16, 32]


def test_a_full_pool_is_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(3, prefix_cache=True)
    bench.add(make_request("a", 33, max_tokens=10))
    bench.step()
    monkeypatch.setattr(Manager, "find_cached_prefix", lambda *_, **__: pytest.fail("searched"))
    bench.add(make_request("b", 20))

    bench.step(5)

    assert not any(plan.admitted for plan in bench.plans[1:])


def test_window_groups_are_hit_to_the_token_when_their_window_is_there() -> None:
    bench = Bench(200, prefix_cache=True, windows=(None, 20, 40))
    history = list(make_request("p", 70).prompt_token_ids)
    for turn in range(4):
        bench.add(make_request(f"t{turn}", prompt=history, max_tokens=6))
        bench.run()
        bench.assert_text_as_alone(f"t{turn}", 6)
        usage = bench.last_event(f"t{turn}").usage
        assert usage is not None
        assert usage.cached_tokens == (0 if turn == 0 else len(history) - 10)
        history += [*bench.tokens(f"t{turn}"), *range(turn, turn + 9)]


def test_forgetting_does_not_disturb_what_runs() -> None:
    bench = Bench(prefix_cache=True)
    bench.add(make_request("a", 40, max_tokens=1), make_request("b", 40, max_tokens=30))
    bench.step(2)

    assert bench.manager.forget_free() == 3

    bench.run()
    bench.assert_text_as_alone("b", 30)
    assert RequestId("a") not in bench.manager.request_ids


def test_nothing_that_a_failed_request_computed_is_found_again() -> None:
    """Its first blocks were listed while it still looked well."""
    bench = Bench(prefix_cache=True, token_budget=64, max_prefill_tokens=32)
    bench.add(make_request("first", prompt=range(20), max_tokens=1))
    bench.run()
    bench.add(make_request("bad", prompt=range(100), max_tokens=4))
    bench.step(2)
    assert bench.pool.num_published > 1
    bench.runner.failures[RequestId("bad")] = "not finite"
    bench.run()
    del bench.runner.failures[RequestId("bad")]

    bench.add(make_request("next", prompt=range(100), max_tokens=4))
    bench.run()

    usage = bench.last_event("next").usage
    assert usage is not None
    assert usage.cached_tokens == 20, "what another had computed"
    bench.assert_text_as_alone("next", 4)


@pytest.mark.parametrize("windows", [(None,), (None, 20)])
def test_what_a_failed_request_had_computed_is_nowhere_found_again(
    windows: tuple[int | None, ...],
) -> None:
    """Not what its windows gave back, nor what another one took over and had copied down."""
    bench = Bench(
        60, prefix_cache=True, num_slots=60, windows=windows, token_budget=64, max_prefill_tokens=32
    )
    prompt = list(range(120))
    bench.add(make_request("bad", prompt=prompt, max_tokens=20))
    bench.step(6)
    bench.add(make_request("heir", prompt=[*prompt[:100], 7, 8], max_tokens=2))
    bench.step(1)
    bench.runner.failures[RequestId("bad")] = "not finite"
    bench.run()
    del bench.runner.failures[RequestId("bad")]
    bench.idle()
    bench.add(make_request("big", 60 * 16 // len(windows) - 40, max_tokens=1))
    bench.run()

    bench.add(make_request("next", prompt=prompt, max_tokens=4))
    bench.run()

    usage = bench.last_event("next").usage
    assert usage is not None
    assert usage.cached_tokens == 0


def test_of_many_that_wait_only_the_first_few_are_looked_up_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A look at a long prompt takes a millisecond, and decoding changes the index all the time."""
    bench = Bench(20, prefix_cache=True, max_running=30)
    bench.add(make_request("a", 33, max_tokens=200))
    bench.step()
    for index in range(12):
        bench.add(make_request(f"w{index}", 300, max_tokens=1))
    bench.step()
    lookups: list[int] = []
    original = Manager.find_cached_prefix

    def counted(self: Manager, *args: Any, **options: Any) -> object:
        lookups.append(len(bench.plans))
        return original(self, *args, **options)

    monkeypatch.setattr(Manager, "find_cached_prefix", counted)
    bench.step(32)

    assert not any(plan.admitted for plan in bench.plans[1:])
    # Two blocks of "a" became full meanwhile.
    assert len(lookups) == 2 * 4
    bench.run()
    for index in range(12):
        bench.assert_text_as_alone(f"w{index}", 1)
