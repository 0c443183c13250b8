"""Keeps the draft tokens that are what their positions sample: the same text with them or without.

A chunk with g drafts has 1 + g rows of logits: after the token sampled last, and after each draft.
The first row is sampled as ever. While what was sampled is the next draft, the row after that draft
is the row that the next step would have computed, so that it is sampled likewise, from the state of
the request with the accepted tokens in it: counts, position, random numbers.

    chunk     last  d1  d2  d3
    sampled   d1    d2  x            d1 and d2 are kept, x is the step's own token, d3 is forgotten

Rows whose outcome does not depend on the tokens before them are sampled in one native call; others
round by round, one row for each request that is still right.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kokuban.core.request import Request
from kokuban.core.step import SampledToken
from kokuban.kernels.sampling import RowMasks
from kokuban.sampling.sampler import Sampler
from kokuban.sampling.state import SamplingState


class Run(NamedTuple):
    """The rows of one chunk that are sampled, one after the other."""

    first: int
    """Of its rows among the logits."""

    drafts: tuple[int, ...]
    """The tokens after all of its rows but the last one."""

    request: Request
    sampling: SamplingState
    """Changes: gets the tokens that are found."""


def sample_runs(
    sampler: Sampler,
    logits: NDArray[np.float32],
    runs: Sequence[Run],
    masks: RowMasks | None = None,
) -> list[list[SampledToken] | str]:
    """Sample every run up to its first draft that is wrong.

    Args:
        logits: [R, V] float32, rows of all runs in their order. Put back when it returns.
        masks: what may be sampled from each of the R rows, after the drafts before it.

    Returns:
        For each run 1 to len(drafts) + 1 tokens, or the text of an error. A run that fails after
        accepted drafts ends with those: the next step meets the error again, where it belongs.
    """
    trials = [_Trial(run) for run in runs]
    going = trials
    while going:
        spans = [trial.rows for trial in going]
        states = [
            trial.run.sampling for trial, rows in zip(going, spans, strict=True) for _ in rows
        ]
        some = () if masks is None else (_some(masks, spans),)
        outcomes = iter(sampler.sample(_taken(logits, spans), states, *some))
        going = [
            trial
            for trial, rows in zip(going, spans, strict=True)
            if trial.take([next(outcomes) for _ in rows])
        ]
    return [trial.outcome for trial in trials]


class _Trial:
    """How far a run is."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._at_once = bool(run.drafts) and _is_fixed(run)
        self._found: list[SampledToken] = []
        self._error: str | None = None

    @property
    def rows(self) -> range:
        """Of the logits, that can be sampled next."""
        first = self.run.first + len(self._found)
        return range(first, first + len(self.run.drafts) + 1 if self._at_once else first + 1)

    @property
    def outcome(self) -> list[SampledToken] | str:
        return self._found if self._error is None or self._found else self._error

    def take(self, outcomes: Sequence[SampledToken | str]) -> bool:
        """Note what the rows gave; returns whether there is a next one."""
        drafts = self.run.drafts
        for outcome in outcomes:
            if isinstance(outcome, str):
                self._error = outcome
                return False
            self._found.append(outcome)
            self.run.sampling.append(outcome.token_id)
            count = len(self._found)
            if count > len(drafts) or outcome.token_id != drafts[count - 1]:
                return False
        return True


def _is_fixed(run: Run) -> bool:
    """Whether what a row gives depends on its logits alone, from now on."""
    params = run.request.params
    return (
        params.temperature == 0
        and params.repetition_penalty == 1
        and params.presence_penalty == params.frequency_penalty == 0
        and run.sampling.num_output >= params.min_tokens
    )


def _some(masks: RowMasks, spans: Sequence[range]) -> RowMasks:
    return RowMasks(masks.words, masks.of[[row for span in spans for row in span]])


def _taken(logits: NDArray[np.float32], spans: Sequence[range]) -> NDArray[np.float32]:
    """Those rows, one after the other; a view where they lie so already."""
    first, end = spans[0].start, spans[-1].stop
    if sum(map(len, spans)) == end - first:
        return logits[first:end]
    return logits[[row for span in spans for row in span]]
