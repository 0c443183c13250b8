"""A step that may take only so long: how much of a prompt it computes, and what is learned."""

import pytest
from tests.fakes import make_request
from tests.unit.scheduler.helpers import Bench, sizes

from kokuban.scheduler.prices import FreeMoves
from kokuban.scheduler.step_target import PrefillTime, StepTarget

DECODER_S, TOKEN_S = 0.002, 0.0001


class TrueBench(Bench):
    """Steps take what a machine takes that nobody has described: 2 ms a decoder, 0.1 ms a token."""

    decoder_s = DECODER_S

    def timed(self) -> tuple[dict[str, int], float]:
        """One step; its chunks and its seconds."""
        self.events += self.scheduler.expire(self.clock())
        plan = self.scheduler.plan(self.clock())
        assert plan is not None
        result = self.runner.run(plan)
        seconds = sum(
            self.decoder_s if len(chunk.token_ids) == 1 else TOKEN_S * len(chunk.token_ids)
            for chunk in plan.chunks
        )
        self.clock.advance(seconds)
        self.events += self.scheduler.commit(plan, result, self.clock())
        self.scheduler.check()
        return sizes(plan), seconds


def crowd(step_target_ms: float | None, num_decoders: int = 8) -> TrueBench:
    """So many requests that have decoded for 20 steps."""
    bench = TrueBench(2000, token_budget=2048, max_running=32, step_target_ms=step_target_ms)
    bench.add(*(make_request(f"d{i}", 20, max_tokens=2000) for i in range(num_decoders)))
    for _ in range(20):
        bench.timed()
    return bench


def test_a_long_prompt_among_decoders_keeps_steps_near_the_target() -> None:
    bench = crowd(step_target_ms=40)
    bench.add(make_request("long", 6000))

    steps = [bench.timed() for _ in range(27)]

    # 24 ms are left beside the decoders: 240 tokens. Each 17th step times the decoders alone.
    assert [chunks.get("long") for chunks, _ in steps] == [240] * 16 + [None] + [240] * 9 + [1]
    assert max(seconds for _, seconds in steps) == pytest.approx(0.040)
    bench.assert_text_as_alone("long", 2)


def test_decoders_that_slow_down_do_not_shrink_the_chunks_of_a_prompt_to_nothing() -> None:
    """The decoders take 16 ms, then 40: that is more than the target, so prompts get a quarter."""
    bench = crowd(step_target_ms=36)
    bench.add(make_request("long", 20_000))
    assert bench.timed()[0]["long"] == 200
    bench.decoder_s = 0.005

    steps = [bench.timed()[0] for _ in range(16 + 6 * 17 + 16)]

    # Once the decoders have been timed often enough: 40 ms / 4 at 0.1 ms a token.
    assert [chunks["long"] for chunks in steps[-16:-1]] == [pytest.approx(100, rel=0.1)] * 15


def test_without_a_target_the_prompt_takes_the_token_budget() -> None:
    bench = crowd(step_target_ms=None)
    bench.add(make_request("long", 6000))

    assert [bench.timed()[0]["long"] for _ in range(3)] == [2040, 2040, 1920]


def test_nobody_decodes_so_the_target_does_not_count() -> None:
    bench = TrueBench(2000, token_budget=2048, step_target_ms=40)
    bench.add(make_request("long", 4000))

    assert [bench.timed()[0]["long"] for _ in range(2)] == [2048, 1952]


def test_a_target_below_what_decoders_take_leaves_prompts_a_quarter_of_their_time() -> None:
    bench = crowd(step_target_ms=10)
    bench.add(make_request("long", 100), make_request("other", 100))

    steps = [bench.timed()[0] for _ in range(4)]

    assert [(chunks.get("long"), chunks.get("other")) for chunks in steps] == [
        (40, None),
        (40, None),
        (20, 20),
        (1, 45),  # There is one decoder more.
    ]
    assert all(len(chunks) >= 9 for chunks in steps), "every decoder is in every step"


def test_one_prompt_that_is_cut_keeps_newcomers_out() -> None:
    """What a cut prompt has left over is no room for another: blocks are kept for the first."""
    bench = crowd(step_target_ms=40)
    bench.add(make_request("long", 1000), make_request("other", 10))

    assert "other" not in bench.timed()[0]


def test_short_prompts_share_the_time_of_a_step() -> None:
    bench = crowd(step_target_ms=40)
    bench.add(*(make_request(name, 100) for name in "abc"))

    chunks, seconds = bench.timed()

    assert [chunks[name] for name in "abc"] == [100, 100, 40]
    assert seconds == pytest.approx(0.040)


def test_a_first_step_that_nothing_is_known_for_is_as_long_as_the_prices_say() -> None:
    target = StepTarget(0.05, lambda start, count: 0.001 * count)

    assert target.begin(0.0, num_decoders=4).num_tokens(0, 1000) == 50


def test_the_first_measurement_replaces_what_the_prices_say() -> None:
    target = StepTarget(0.05, lambda start, count: 0.001 * count)
    _step(target, num_tokens=1000, seconds=0.1)

    assert target.prefill_s(0, 100) == pytest.approx(0.01)


def test_a_stall_counts_as_twice_the_usual_at_most() -> None:
    target = StepTarget(0.05, lambda start, count: 0.001 * count)
    _step(target, num_tokens=100, seconds=0.1)
    _step(target, num_tokens=100, seconds=60.0)

    assert target.prefill_s(0, 100) == pytest.approx(0.15)


def test_slower_is_believed_sooner_than_faster() -> None:
    target = StepTarget(0.05, lambda start, count: 0.001 * count)
    _step(target, num_tokens=100, seconds=0.1)
    _step(target, num_tokens=100, seconds=0.05)

    assert target.prefill_s(0, 100) == pytest.approx(0.09)


def test_more_decoders_than_were_ever_timed_are_expected_to_take_longer() -> None:
    target = StepTarget(0.05, FreeMoves().recompute_s)
    target.begin(0.0, num_decoders=4)
    target.end(0.02)

    assert [target.base_s(count) for count in (2, 4, 8)] == [0.02, 0.02, pytest.approx(0.04)]


def test_tokens_far_into_a_prompt_cost_more() -> None:
    def price(start: int, count: int) -> float:
        return sum(1e-4 + 1e-7 * place for place in range(start, start + count))

    early = PrefillTime(0.02, price).num_tokens(0, 1000)
    late = PrefillTime(0.02, price).num_tokens(5000, 1000)

    assert price(0, early) == pytest.approx(0.02, rel=0.1)
    assert price(5000, late) == pytest.approx(0.02, rel=0.1)
    assert late < early


def _step(target: StepTarget, *, num_tokens: int, seconds: float) -> None:
    """A step that is all prompt."""
    time = target.begin(0.0, num_decoders=0)
    time.spend(0, num_tokens, is_last=False)
    target.end(seconds)


@pytest.mark.parametrize(("start", "tokens"), [(0, 10), (1000, 7), (6000, 32)])
def test_a_chunk_is_worth_what_its_first_token_reads(start: int, tokens: int) -> None:
    """10 ms are left. At 1,000 the K and V before the chunk take 5, and one token with them 6:
    twice that is spent. At 6,000 they take 30: not 31 ms for one token, but 62 for 32."""
    time = PrefillTime(0.010, lambda at, count: at * 5e-6 + count * 1e-3)

    assert time.num_tokens(start, 100) == tokens
