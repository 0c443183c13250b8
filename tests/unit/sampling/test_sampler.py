import math

import numpy as np
import pytest

from kokuban.core.request import Request, RequestId
from kokuban.core.sampling_params import SamplingParams
from kokuban.core.step import SampledToken, TokenLogprob
from kokuban.sampling.sampler import Sampler
from kokuban.sampling.state import SamplingState


def make_state(params: SamplingParams, **fields: object) -> SamplingState:
    request = Request(id=RequestId("a"), prompt_token_ids=(0,), params=params, **fields)  # type: ignore[arg-type]
    return SamplingState(request)


GREEDY = SamplingParams(temperature=0)


def test_each_row_gets_its_token() -> None:
    logits = np.array([[0, 2, 1], [3, 2, 1]], np.float32)

    outcomes = Sampler().sample(logits, [make_state(GREEDY), make_state(GREEDY)])

    assert outcomes == [SampledToken(1), SampledToken(0)]


def test_logprobs_are_given_to_those_that_asked() -> None:
    """Three logits whose softmax is 1/2, 1/4, 1/4."""
    logits = np.array([[0.0, math.log(2), 0.0]] * 2, np.float32)
    asking = make_state(SamplingParams(temperature=0, logprobs=2))

    silent, told = Sampler().sample(logits, [make_state(GREEDY), asking])

    assert silent == SampledToken(1)
    assert isinstance(told, SampledToken)
    assert told.token_id == 1
    assert told.logprob == pytest.approx(math.log(1 / 2), abs=1e-6)
    assert [entry.token_id for entry in told.top] == [1, 0]
    assert told.top[0] == TokenLogprob(1, told.logprob)
    assert told.top[1].logprob == pytest.approx(math.log(1 / 4), abs=1e-6)


def test_logprobs_of_0_give_the_chosen_token_alone() -> None:
    """B86: `top_logprobs` absent or 0 still reports the chosen token's logprob."""
    state = make_state(SamplingParams(temperature=0, logprobs=0))

    [token] = Sampler().sample(np.zeros((1, 4), np.float32), [state])

    assert isinstance(token, SampledToken)
    assert token.logprob == pytest.approx(math.log(1 / 4), abs=1e-6)
    assert token.top == ()


def test_one_request_fails_and_its_neighbours_do_not() -> None:
    logits = np.array([[0, 1], [math.nan, 1], [1, 0]], np.float32)

    first, second, third = Sampler().sample(logits, [make_state(GREEDY)] * 3)

    assert (first, third) == (SampledToken(1), SampledToken(0))
    assert isinstance(second, str)
    assert "not finite" in second


def test_ruling_out_every_token_is_an_error_that_names_min_tokens() -> None:
    state = make_state(SamplingParams(min_tokens=1), end_token_ids=frozenset({0, 1}))

    [outcome] = Sampler().sample(np.zeros((1, 2), np.float32), [state])

    assert isinstance(outcome, str)
    assert "lower min_tokens" in outcome


def test_seed_and_choice_of_the_request_reach_the_generator() -> None:
    logits = np.zeros((3, 10_000), np.float32)
    states = [
        make_state(SamplingParams(), seed=seed, choice=choice)
        for seed, choice in ((7, 0), (7, 1), (8, 0))
    ]

    outcomes = Sampler().sample(logits, states)

    assert len(set(outcomes)) == 3
    assert outcomes == Sampler().sample(logits, states)


def test_padding_of_the_vocabulary_is_never_sampled() -> None:
    logits = np.array([[0.0, 1.0, 9.0]], np.float32)

    assert Sampler(valid_vocab=2).sample(logits, [make_state(GREEDY)]) == [SampledToken(1)]


def test_prompt_tokens_are_scored_against_the_row_before_them() -> None:
    logits = np.array([[0.0, math.log(3)], [0.0, 0.0]], np.float32)

    first, second = Sampler().score(logits, [0, 1], num_top=1)

    assert isinstance(first, SampledToken)
    assert isinstance(second, SampledToken)
    assert (first.token_id, second.token_id) == (0, 1)
    assert first.logprob == pytest.approx(math.log(1 / 4), abs=1e-6)
    assert [entry.token_id for entry in (*first.top, *second.top)] == [1, 0]
    assert first.top[0].logprob == pytest.approx(math.log(3 / 4), abs=1e-6)


def test_an_empty_batch_gives_no_outcomes() -> None:
    empty = np.empty((0, 9), np.float32)

    assert Sampler().sample(empty, []) == []
    assert Sampler().score(empty, [], 2) == []
