"""The ranges of sampling parameters, declared here and nowhere else.

`SamplingParams` checks by them; the table in `server.parameters` takes them over, and from it come
the bodies of the API, its documents and the fuzz tests.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

MAX_LOGPROBS = 20
MAX_CHOICES = 128
SEED_BITS = 63
MOST_TOKENS = 2**62
GRAMMAR_LIMIT_S = 5.0
"""How long a request waits for its grammar to be compiled."""


class Range(NamedTuple):
    """The numbers that a parameter takes, both ends included unless it is open."""

    low: float
    high: float
    whole: bool = False
    is_open: bool = False
    """Whether `low` itself is left out."""

    def problem(self, name: str, value: object) -> str | None:
        """What is wrong with a value; None: nothing. True is no number of anything."""
        if self.whole and (not isinstance(value, int) or isinstance(value, bool)):
            return f"{name}={value!r} is not a whole number"
        if not isinstance(value, int | float) or isinstance(value, bool):
            return f"{name}={value!r} is not a number"
        is_finite = isinstance(value, int) or math.isfinite(value)  # Big integers become no float.
        is_open_end = self.is_open and value == self.low
        if is_finite and self.low <= value <= self.high and not is_open_end:
            return None
        return f"{name}={value} is not {self}"

    def __str__(self) -> str:
        """As words: `between 0 and 2`."""
        low, high = _plain(self.low), _plain(self.high)
        return f"above {low} and at most {high}" if self.is_open else f"between {low} and {high}"


def _plain(bound: float) -> str:
    return f"{bound:g}" if isinstance(bound, float) else str(bound)


RANGES: Mapping[str, Range] = {
    "temperature": Range(0.0, 2.0),
    "min_p": Range(0.0, 1.0),
    "presence_penalty": Range(-2.0, 2.0),
    "frequency_penalty": Range(-2.0, 2.0),
    "top_p": Range(0.0, 1.0, is_open=True),
    "repetition_penalty": Range(0.0, 10.0, is_open=True),
    "top_k": Range(-1, 2**31 - 1, whole=True),
    "n": Range(1, MAX_CHOICES, whole=True),
    "min_tokens": Range(0, MOST_TOKENS, whole=True),
    "seed": Range(-(2**SEED_BITS), 2**SEED_BITS - 1, whole=True),
    "max_tokens": Range(0, MOST_TOKENS, whole=True),
    "logprobs": Range(0, MAX_LOGPROBS, whole=True),
    "prompt_logprobs": Range(0, MAX_LOGPROBS, whole=True),
}
"""Of the numbers in `SamplingParams`, by name."""

BIAS_RANGE = Range(-100.0, 100.0)
"""Of each value in `logit_bias`."""
