"""What all workers of the peer benchmarks share: orders on stdin, times on stdout.

A worker is a process that holds one engine. It prints one line of JSON about itself when the model
is loaded; then each line that comes in is a `Case`, and each line that goes out is its `Times`.
This file is read by the pythons of the peers too: it needs nothing but Python 3.10.
"""

import json
import random
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

FIRST_ID, NUM_IDS = 1000, 20_000
"""Token ids that are ordinary text in every vocabulary of today."""


@dataclass(frozen=True)
class Case:
    """Work that is the same for every engine: greedy, and never ended early."""

    batch: int
    prompt: int
    """Tokens of each prompt."""

    new: int
    """Tokens of each answer, 1 or more."""

    seed: int

    def prompts(self) -> list[list[int]]:
        """Random token ids; no two prompts share a beginning."""
        draw = random.Random(self.seed)
        return [
            [FIRST_ID + draw.randrange(NUM_IDS) for _ in range(self.prompt)]
            for _ in range(self.batch)
        ]


@dataclass(frozen=True)
class Times:
    """What one run of a case took."""

    prefill_s: float
    """From the start until every sequence has its first token."""

    decode_tok_s: float | None
    """Tokens a second, over all sequences, while all of them decode; None without such a time."""

    total_s: float


class Record:
    """When the tokens of each sequence came."""

    def __init__(self, batch: int) -> None:
        self._arrivals: list[list[tuple[float, int]]] = [[] for _ in range(batch)]
        self._start = time.perf_counter()

    def take(self, sequence: int, num_tokens: int = 1) -> None:
        """Note that a sequence has got so many tokens now."""
        self._arrivals[sequence].append((time.perf_counter(), num_tokens))

    def times(self) -> Times:
        """The window in which all decode begins when the last one has its first token, and ends
        with the first that is complete. Each sequence's own speed in it, first token to last, is
        taken, so that it does not matter where in a step the window's edges fall.
        """
        begin = max(arrivals[0][0] for arrivals in self._arrivals)
        end = min(arrivals[-1][0] for arrivals in self._arrivals)
        speeds = [_speed(arrivals, begin, end) for arrivals in self._arrivals]
        last = max(arrivals[-1][0] for arrivals in self._arrivals)
        return Times(
            prefill_s=begin - self._start,
            decode_tok_s=None if None in speeds else sum(filter(None, speeds)),
            total_s=last - self._start,
        )


def _speed(arrivals: list[tuple[float, int]], begin: float, end: float) -> float | None:
    """Tokens a second between the first and the last arrival within [begin, end]."""
    inside = [arrival for arrival in arrivals if begin <= arrival[0] <= end]
    if len(inside) < 2:
        return None
    return sum(count for _, count in inside[1:]) / (inside[-1][0] - inside[0][0])


def work(facts: Mapping[str, Any], run: Callable[[Case], Times]) -> None:
    """Say what this engine is, then run cases until stdin ends.

    Args:
        facts: `version`, and the settings that are worth telling.
    """
    print(json.dumps(dict(facts)), flush=True)
    for line in sys.stdin:
        print(json.dumps(asdict(run(Case(**json.loads(line))))), flush=True)
