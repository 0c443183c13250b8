"""Which rows of a chunk with drafts are sampled, in how many calls, and what is kept."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kokuban.core.request import Request, RequestId
from kokuban.core.sampling_params import SamplingParams
from kokuban.core.step import SampledToken
from kokuban.runner.verify import Run, sample_runs
from kokuban.sampling.sampler import Sampler
from kokuban.sampling.state import SamplingState

VOCAB = 8
GREEDY = SamplingParams(temperature=0, max_tokens=None)


class Counted(Sampler):
    """Notes how many rows each call samples."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[int] = []

    def sample(
        self, logits: NDArray[np.float32], states: Sequence[SamplingState]
    ) -> list[SampledToken | str]:
        self.calls.append(len(states))
        return super().sample(logits, states)


def peaks(*token_ids: int) -> NDArray[np.float32]:
    """Rows in which these tokens are the most likely ones."""
    logits = np.zeros((len(token_ids), VOCAB), np.float32)
    logits[np.arange(len(token_ids)), token_ids] = 5
    return logits


def make_run(
    first: int, drafts: Sequence[int], params: SamplingParams = GREEDY, **request: Any
) -> Run:
    made = Request(id=RequestId(f"r{first}"), prompt_token_ids=(1, 2), params=params, **request)
    return Run(first, tuple(drafts), made, SamplingState(made))


def ids(found: list[SampledToken] | str) -> list[int]:
    assert not isinstance(found, str), found
    return [token.token_id for token in found]


def test_drafts_are_kept_up_to_the_first_that_is_wrong() -> None:
    sampler = Counted()
    run = make_run(0, [3, 4, 6])

    [found] = sample_runs(sampler, peaks(3, 4, 5, 7), [run])

    assert ids(found) == [3, 4, 5]
    assert run.sampling.num_output == 3
    assert sampler.calls == [4], "greedy rows do not depend on each other"


def test_all_right_brings_one_token_more_than_drafts() -> None:
    [found] = sample_runs(Counted(), peaks(3, 4, 5), [make_run(0, [3, 4])])

    assert ids(found) == [3, 4, 5]


def test_a_first_draft_that_is_wrong_leaves_the_step_its_own_token() -> None:
    [found] = sample_runs(Counted(), peaks(3, 4, 5), [make_run(0, [2, 4])])

    assert ids(found) == [3]


def test_rows_that_depend_on_tokens_before_them_are_sampled_in_rounds() -> None:
    """A presence penalty of 6 forbids a token that was said, by the accepted draft itself."""
    sampler = Counted()
    params = SamplingParams(temperature=0, presence_penalty=2.0, max_tokens=None)
    logits = peaks(3, 3, 5)
    logits[:, 6] = 4

    [found] = sample_runs(sampler, logits, [make_run(0, [3, 6], params)])

    assert ids(found) == [3, 6, 5]
    assert sampler.calls == [1, 1, 1]


def test_min_tokens_ends_where_the_output_reaches_it() -> None:
    params = SamplingParams(temperature=0, min_tokens=1, max_tokens=None)
    logits = peaks(7, 7)
    logits[:, 3] = 4

    [found] = sample_runs(
        Counted(), logits, [make_run(0, [3], params, end_token_ids=frozenset({7}))]
    )

    assert ids(found) == [3, 7]


def test_runs_of_all_kinds_share_calls_and_disturb_nobody() -> None:
    sampler = Counted()
    sampled = SamplingParams(temperature=1.0, max_tokens=None)
    runs = [
        make_run(0, [3, 4]),
        make_run(3, [], sampled, seed=5),
        make_run(4, [2, 2], sampled, seed=6),
        make_run(7, []),
    ]
    logits = peaks(3, 9 % VOCAB, 5, 6, 2, 2, 1, 7)
    logits[3:7] *= 10  # So sure that sampling has no choice.
    before = logits.copy()

    found = sample_runs(sampler, logits, runs)

    assert [ids(each) for each in found] == [[3, 1], [6], [2, 2, 1], [7]]
    assert sampler.calls == [3 + 1 + 1 + 1, 1, 1]
    np.testing.assert_array_equal(logits, before)


def test_random_numbers_are_those_of_the_position() -> None:
    """A run of drafts equals steps one by one, with random numbers and all."""
    draw = np.random.default_rng(3)
    logits = draw.normal(0, 2, (6, VOCAB)).astype(np.float32)
    params = SamplingParams(temperature=1.0, repetition_penalty=1.4, max_tokens=None)
    alone = make_run(0, [], params, seed=9)
    expected = []
    for row in range(6):
        [one] = sample_runs(Sampler(), logits[row : row + 1], [alone])
        expected += ids(one)

    [found] = sample_runs(Sampler(), logits, [make_run(0, expected[:5], params, seed=9)])

    assert ids(found) == expected


@pytest.mark.parametrize("params", [GREEDY, SamplingParams(temperature=1.0, max_tokens=None)])
def test_an_error_is_told_only_where_the_request_has_come_to(params: SamplingParams) -> None:
    logits = peaks(3, 4, 5, 6)
    logits *= 10
    logits[2] = np.nan

    right, wrong, first = (
        sample_runs(Sampler(), logits[begin:].copy(), [make_run(0, drafts, params)])[0]
        for begin, drafts in ((0, [3, 4, 5]), (0, [2, 4, 5]), (2, [5]))
    )

    assert ids(right) == [3, 4], "what is right is kept; the next step meets the error"
    assert ids(wrong) == [3], "a row that is never reached is nobody's error"
    assert isinstance(first, str)
    assert "not finite" in first
