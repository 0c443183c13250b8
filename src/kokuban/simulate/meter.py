"""Adds up what a simulated run spent: time, tokens, KV slots held for nothing."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


class Meter:
    """Sums over steps, weighted with the time that each took."""

    def __init__(self) -> None:
        self.num_steps = 0
        self.num_tokens = 0
        self.busy_s = 0.0
        self.max_running = 0
        self._running_s = 0.0
        self._held_slot_s = 0.0
        self._empty_slot_s = 0.0

    def note_step(
        self,
        step_s: float,
        *,
        num_tokens: int,
        num_running: int,
        held_slots: int,
        empty_slots: int,
    ) -> None:
        """Count a step.

        Args:
            num_running: requests that hold KV.
            held_slots: token slots that are held by them and can serve nobody else.
            empty_slots: those of them that hold no token at the end of the step.
        """
        self.num_steps += 1
        self.num_tokens += num_tokens
        self.busy_s += step_s
        self.max_running = max(self.max_running, num_running)
        self._running_s += step_s * num_running
        self._held_slot_s += step_s * held_slots
        self._empty_slot_s += step_s * empty_slots

    @property
    def waste(self) -> float:
        """Share of the held slots that hold no token: the average over time, from 0 to 1."""
        return self._empty_slot_s / self._held_slot_s if self._held_slot_s else 0.0

    @property
    def mean_running(self) -> float:
        """Requests that hold KV: the average over the time in which any does."""
        return self._running_s / self.busy_s if self.busy_s else 0.0

    @property
    def mean_held_slots(self) -> float:
        """Token slots held: the average over the time in which any is."""
        return self._held_slot_s / self.busy_s if self.busy_s else 0.0


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Of a set of times in seconds, by nearest rank; all 0 when there are none."""

    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Percentiles":
        ordered = sorted(values)

        def rank(share: float) -> float:
            return ordered[math.ceil(share * len(ordered)) - 1] if ordered else 0.0

        return cls(rank(0.5), rank(0.9), rank(0.99))


class Latencies:
    """When requests came, got their first token and ended."""

    def __init__(self) -> None:
        self._ttfts: list[float] = []
        self._tpots: list[float] = []

    def note(self, *, arrival_s: float, first_s: float, last_s: float, num_output: int) -> None:
        """Count a request that ended. One of a single token has no time per output token."""
        self._ttfts.append(first_s - arrival_s)
        if num_output > 1:
            self._tpots.append((last_s - first_s) / (num_output - 1))

    @property
    def ttft(self) -> Percentiles:
        """Seconds from arrival to the first token."""
        return Percentiles.of(self._ttfts)

    @property
    def tpot(self) -> Percentiles:
        """Seconds for each token after the first."""
        return Percentiles.of(self._tpots)
