"""Cuts the prefill part of a step so that a step takes about as long as the operator wants.

    target    |·· decoders ··|·· prompts: what is left ··|
    learned     base           price of a token × scale

Prices say how the cost of a prompt's tokens grows with their place; how many seconds a unit of
price is, and what a step takes in which nobody computes a prompt, is measured in every step. So it
does not matter much how right the prices are, and a machine that slows down gets smaller chunks.

Without decoders a step may be all prompt. Prompts never starve: they get a fifth of every step at
least, even if the decoders alone take longer than the target.

Never: asks a clock. The scheduler is told the time.
"""

import math
from collections.abc import Callable
from typing import Self

from kokuban.core.config import SchedulerConfig

Price = Callable[[int, int], float]
"""Of computing tokens of one request: where they begin, how many. Any unit."""

_SLOWER, _FASTER = 0.5, 0.2
"""Weights of the newest step: chunks shrink faster than they grow."""

_MOST = 2.0
"""The factor that one step may change an estimate by: a stall of the machine says nothing."""

_PROBE_EVERY = 16
"""Steps with prompts after which one goes to the decoders alone. Otherwise what these take is not
measured while a long prompt comes in: as their contexts grow, or the machine slows down, the prompt
is blamed, and its chunks shrink to nothing."""

_PROMPTS = 0.25
"""What prompts may take at least, of what the decoders take. Not a number of tokens: a block far
into a long prompt can take longer than all decoders."""

_FIRST_TOKENS = 2.0
"""What the first chunk of a step may take at least, in times of one token at its place. Far into a
prompt that token reads the K and V of all before it, and others with it read them no second time:
where that alone is more than is left, one token a step would make a prompt take minutes, in which
the contexts of the decoders grow past any target."""

_LEAST_SHARE = 0.05
"""Of a step's time that its prompts have taken at least, whatever the decoders usually take."""


class PrefillTime:
    """What one step may still spend on prompts.

    Args:
        left_s: seconds; `math.inf` without decoders.
        price: in seconds.
    """

    def __init__(self, left_s: float, price: Price) -> None:
        self._left_s = left_s
        self._price = price
        self._ended = False
        self.spent_s = 0.0
        """For the prompts of the step so far, by the estimate of when it was begun."""

    @property
    def is_left(self) -> bool:
        """Whether one more prompt may have a chunk."""
        return not self._ended and self.spent_s < self._left_s

    def num_tokens(self, start: int, wanted: int) -> int:
        """Tokens of a request, `wanted` at most and 1 at least, that there is time for."""
        left_s, first_s = self._left_s - self.spent_s, self._price(start, 1)
        if not self.spent_s:
            left_s = max(left_s, _FIRST_TOKENS * first_s)
        fitting = wanted
        # A long chunk costs more for each token than a short one: three looks are close enough.
        for _ in range(3):
            whole_s = self._price(start, fitting)
            if (fitting == wanted and whole_s <= left_s) or whole_s <= first_s:
                break
            more = (fitting - 1) * (left_s - first_s) / (whole_s - first_s)
            fitting = min(wanted, max(1, 1 + round(more)))
        return fitting

    def spend(self, start: int, num_tokens: int, *, is_last: bool) -> None:
        """Count a chunk.

        Args:
            is_last: whether the prompt goes on behind it, so that nobody else may have the rest.
        """
        self.spent_s += self._price(start, num_tokens)
        self._ended = self._ended or is_last


class StepTarget:
    """See the module.

    Args:
        target_s: seconds that a step should take.
        price: seconds as far as anybody knows, or any other unit.
    """

    def __init__(self, target_s: float, price: Price) -> None:
        self._target_s = target_s
        self._price = price
        self._scale = 1.0
        self._is_measured = False
        self._base_s = 0.0
        self._base_decoders = 0
        # Of steps with prompts since the decoders were timed alone: number, seconds, prices.
        self._num_unprobed, self._unprobed_s, self._unprobed_price = 0, 0.0, 0.0
        self._begun: tuple[float, int, PrefillTime] | None = None

    @classmethod
    def of(cls, config: SchedulerConfig, price: Price) -> Self | None:
        """None if no target is wanted."""
        if config.step_target_ms is None:
            return None
        return cls(config.step_target_ms * 1e-3, price)

    def base_s(self, num_decoders: int) -> float:
        """What a step takes in which so many requests decode and nobody computes a prompt."""
        if num_decoders <= self._base_decoders or not self._base_decoders:
            return self._base_s
        return self._base_s * num_decoders / self._base_decoders

    def prefill_s(self, start: int, num_tokens: int) -> float:
        """What it adds to a step to compute tokens of a prompt."""
        return self._scale * self._price(start, num_tokens)

    def begin(self, now_s: float, num_decoders: int) -> PrefillTime:
        """A step with so many decoders is being planned."""
        base_s = self.base_s(num_decoders)
        left_s = max(self._target_s - base_s, _PROMPTS * base_s) if num_decoders else math.inf
        if num_decoders and self._num_unprobed >= _PROBE_EVERY:
            left_s = 0.0
        time = PrefillTime(left_s, self.prefill_s)
        self._begun = now_s, num_decoders, time
        return time

    def end(self, now_s: float) -> None:
        """The step that was begun last has been computed."""
        assert self._begun is not None, "no step was begun"
        begun_s, num_decoders, time = self._begun
        step_s = now_s - begun_s
        if step_s <= 0:
            return  # A clock that stands still tells nothing.
        if time.spent_s == 0.0:
            self._learn_base(step_s, num_decoders)
            self._share_again(num_decoders)
        else:
            if num_decoders:
                self._num_unprobed += 1
                self._unprobed_s += step_s
                self._unprobed_price += time.spent_s / self._scale
            prompts_s = max(step_s - self.base_s(num_decoders), _LEAST_SHARE * step_s)
            self._learn_scale(prompts_s / time.spent_s)

    def _learn_base(self, step_s: float, num_decoders: int) -> None:
        known_s = self.base_s(num_decoders)
        self._base_s = _towards(known_s, step_s, faster=_SLOWER) if known_s else step_s
        self._base_decoders = num_decoders

    def _share_again(self, num_decoders: int) -> None:
        """Now that the decoders have been timed: what the prompts before took, beside them."""
        if self._num_unprobed >= _PROBE_EVERY:  # Fewer may have been a stall.
            prompts_s = self._unprobed_s - self._num_unprobed * self.base_s(num_decoders)
            least_s = _LEAST_SHARE * self._unprobed_s
            self._scale = max(prompts_s, least_s) / self._unprobed_price
        self._num_unprobed, self._unprobed_s, self._unprobed_price = 0, 0.0, 0.0

    def _learn_scale(self, factor: float) -> None:
        """Args:
        factor: measured seconds over estimated ones.
        """
        self._scale = _towards(self._scale, self._scale * factor, free=not self._is_measured)
        self._is_measured = True


def _towards(
    known: float, measured: float, *, faster: float = _FASTER, free: bool = False
) -> float:
    """A running estimate after one more measurement; the first of all replaces what was guessed."""
    if free:
        return measured
    measured = min(max(measured, known / _MOST), known * _MOST)
    return known + (_SLOWER if measured > known else faster) * (measured - known)
