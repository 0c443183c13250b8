"""How long a decoding step takes, as a function of its tokens: the cost model, put right by clocks.

The model knows how time grows with batch, drafts and context; what it does not know of this machine
(how well two rows share one reading of the weights, what a step costs around the products) is
measured while the engine runs. What is wanted is a ratio, the price of B + m tokens against B
tokens, so that a machine that slows down as a whole must not count for the number of tokens that
happened to be computed then:

    log(measured / model) = speed of the machine now + correction for this number of tokens

The first follows quickly, the second slowly. Owned by the speculator.
"""

import math
from functools import lru_cache

from kokuban.scheduler.prices import Prices

CONTEXT_STEP = 256
"""Contexts are rounded up to a multiple, so that prices are computed seldom."""

COMPANY_STEP = 64
"""So are the prompt tokens of a step."""

_FOLLOW = 0.3
"""Share of a surprise that is put down to the machine."""

_LEARN = 0.05
"""Share of the rest that is put down to the number of tokens, once that has been seen often."""

_MOST_SURPRISE = 0.7
"""Steps that take twice or half of what was expected say no more than this: something else ran."""

_FINE, _PER_DOUBLING = 8, 4
"""Numbers of tokens up to the first have corrections of their own; above, so many each doubling."""


class StepTimes:
    """See the module.

    Args:
        prices: the cost model's.
    """

    def __init__(self, prices: Prices) -> None:
        self._model_s = lru_cache(maxsize=4096)(prices.decode_s)
        self._speed = 0.0
        self._corrections: dict[int, float] = {}
        self._num_seen: dict[int, int] = {}

    def step_s(
        self, context_tokens: int, num_requests: int, num_drafts: int, num_others: int = 0
    ) -> float:
        """Seconds of a step.

        Args:
            context_tokens: of the requests that decode, on average.
            num_drafts: tokens beside the one that each of them computes anyway.
            num_others: prompt tokens in the same step.
        """
        num_tokens = num_requests + num_drafts
        modelled_s = self._modelled_s(context_tokens, num_requests, num_drafts, num_others)
        return modelled_s * math.exp(self._speed + self._correction(_bucket(num_tokens)))

    def scaled_s(self, seconds: float) -> float:
        """What the model says of other work, at the speed of the machine now."""
        return seconds * math.exp(self._speed)

    def observe(
        self,
        context_tokens: int,
        num_requests: int,
        num_drafts: int,
        seconds: float,
        guessing_s: float = 0.0,
    ) -> None:
        """Learn from a step that computed nothing else.

        Args:
            guessing_s: what the model says of guessing the drafts, which was timed with the step.
        """
        if seconds <= 0:
            return
        bucket = _bucket(num_requests + num_drafts)
        modelled_s = self._modelled_s(context_tokens, num_requests, num_drafts, 0) + guessing_s
        if not self._num_seen:
            self._speed = math.log(seconds / modelled_s)
        correction = self._correction(bucket)
        surprise = math.log(seconds / modelled_s) - self._speed - correction
        surprise = max(-_MOST_SURPRISE, min(_MOST_SURPRISE, surprise))
        num_seen = self._num_seen[bucket] = self._num_seen.get(bucket, 0) + 1
        self._corrections[bucket] = correction + max(_LEARN, 0.5 / num_seen) * surprise
        self._speed += _FOLLOW * surprise

    def _modelled_s(
        self, context_tokens: int, num_requests: int, num_drafts: int, num_others: int
    ) -> float:
        context = -(-max(1, context_tokens) // CONTEXT_STEP) * CONTEXT_STEP
        others = -(-num_others // COMPANY_STEP) * COMPANY_STEP
        return self._model_s(context, num_requests, num_drafts + others)

    def _correction(self, bucket: int) -> float:
        """That of the nearest number of tokens that has been seen."""
        if bucket in self._corrections or not self._corrections:
            return self._corrections.get(bucket, 0.0)
        nearest = min(self._corrections, key=lambda known: (abs(known - bucket), known))
        return self._corrections[nearest]


def _bucket(num_tokens: int) -> int:
    if num_tokens <= _FINE:
        return num_tokens
    return _FINE + int(_PER_DOUBLING * math.log2(num_tokens / _FINE))
