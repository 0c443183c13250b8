"""From the policy to the engine, rule by rule: numbers counted by hand, and nothing left over."""

import random
from dataclasses import replace

import pytest
from tests.unit.simulate.setups import setup

from kokuban.core.errors import ConfigError
from kokuban.simulate.rules import RuleResult, explain
from kokuban.simulate.trace import Trace, TraceRequest, make_trace

RULES = [
    "block",
    "token",
    "tail-first",
    "prompt-1",
    "pages",
    "answers",
    "one-at-a-time",
    "overlap",
]


def request(place: int, *names: int, output: int = 1, prompt: int = 0) -> TraceRequest:
    """A prompt of whole blocks, unless another length is given; each long after the one before."""
    return TraceRequest(
        arrival_s=1000.0 * place,
        prompt_tokens=prompt or 16 * len(names),
        output_tokens=output,
        block_ids=names,
    )


def rows(trace: Trace, capacity_blocks: int) -> dict[str, RuleResult]:
    results = explain(trace, capacity_blocks, setup())
    assert [result.rule for result in results] == RULES
    return {result.rule: result for result in results}


def test_the_same_prompt_again_computes_its_last_token() -> None:
    found = rows(make_trace("t", 16, [request(0, 1, 2), request(1, 1, 2)]), 20)

    assert (found["block"].hits, found["block"].count) == (2, 4)
    assert (found["token"].hits, found["token"].count) == (32, 64)
    assert found["tail-first"].hits == 32
    assert [found[rule].hits for rule in RULES[3:]] == [31] * 5


def test_the_tail_of_a_prompt_goes_before_its_head() -> None:
    """Seven blocks: the second prompt takes one of the four that the first one had."""
    trace = make_trace("t", 16, [request(0, 1, 2, 3, 4), request(1, 9, 8, 7, 6), request(2, 1, 2)])

    found = rows(trace, 7)

    assert (found["token"].hits, found["tail-first"].hits) == (0, 32)
    assert found["overlap"].hits == 31


def test_a_short_last_block_takes_the_room_of_its_tokens_only() -> None:
    """Names of 64 tokens: 8 in the second one are one page of 16 and not four."""
    lines = [request(place, place, 10 + place, prompt=72) for place in range(3)]
    trace = make_trace("t", 64, [*lines, request(3, 0, 10, prompt=72)])

    found = rows(trace, 4)

    assert (found["prompt-1"].hits, found["pages"].hits) == (0, 71)


def test_answers_take_room() -> None:
    """Seven blocks: two prompts of two blocks fit, but not with answers of two and of four."""
    lines = [request(0, 1, 2, output=33), request(1, 3, 4, output=64), request(2, 1, 2)]

    found = rows(make_trace("t", 16, lines), 7)

    # The second answer takes the blocks of the first one, and the last of its prompt.
    assert (found["pages"].hits, found["answers"].hits) == (31, 16)
    assert found["one-at-a-time"].hits == 16


def test_requests_that_run_together_have_less_room_and_compute_the_same_twice() -> None:
    first = [replace(request(0, 1, 2, 3, output=9), arrival_s=0.0) for _ in range(2)]

    found = rows(make_trace("t", 16, first), 20)

    assert (found["one-at-a-time"].hits, found["overlap"].hits) == (47, 0)
    assert found["one-at-a-time"].mean_running == 1.0
    # Ten steps: both prompts do not fit into the first one whole.
    assert found["overlap"].mean_running == pytest.approx(1.9)


@pytest.mark.parametrize("seed", range(6))
def test_one_at_a_time_the_engine_hits_what_the_manager_hits_alone(seed: int) -> None:
    """Trees of names, tails of any length, answers, a pool that is too small: no token is over."""
    rng = random.Random(seed)
    lines = []
    for place in range(60):
        depth = rng.randint(1, 5)
        names = [rng.randint(0, 2)]
        for _ in range(depth - 1):
            names.append(10 * names[-1] + rng.randint(1, 3))
        prompt = rng.choice([64 * depth, 64 * depth - rng.randint(1, 60)])
        lines.append(request(place, *names, output=rng.randint(1, 40), prompt=prompt))

    found = rows(make_trace("t", 64, lines), rng.choice([8, 12, 20]))

    assert found["answers"].hits > 0
    assert found["answers"].hits == found["one-at-a-time"].hits


@pytest.mark.parametrize(
    ("trace", "capacity", "text"),
    [
        (make_trace("t", 16, [replace(request(0, 1), session="s")]), 9, "has sessions"),
        (make_trace("t", 16, [replace(request(0, 1), block_ids=())]), 9, "names no blocks"),
        (make_trace("t", 16, [request(0, 1, 2, 3)]), 3, "49 tokens and 32"),
        (make_trace("t", 24, [request(0, 1)]), 4, "24 tokens are no whole number"),
    ],
)
def test_what_cannot_be_explained_is_refused(trace: Trace, capacity: int, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        explain(trace, capacity, setup())
