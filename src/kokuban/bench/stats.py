"""Percentiles and spreads, by rules that are written down once and told in every output."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

PERCENTILES = (50, 90, 95, 99)

PERCENTILE_RULE = (
    "percentile p of n sorted values lies at rank (n - 1) * p / 100, counted from 0; between two "
    "ranks it is interpolated linearly"
)
"""NumPy's default, and what most benchmarks of servers use."""

SPREAD_RULE = "spread = (largest - smallest) / median over the rounds"


@dataclass(frozen=True, slots=True)
class Distribution:
    """What is told of many values, in their unit."""

    count: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True)
class Rounds:
    """One figure over several rounds of the same work."""

    median: float
    spread: float
    """(largest - smallest) / median; 0 for a median of 0."""

    values: tuple[float, ...]
    """In the order in which they were measured."""


def percentile(values: Sequence[float], p: float) -> float:
    """See `PERCENTILE_RULE`.

    Args:
        values: in ascending order, at least one.
        p: from 0 to 100.
    """
    rank = (len(values) - 1) * p / 100
    low = math.floor(rank)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (rank - low)


def distribution(values: Sequence[float]) -> Distribution | None:
    """None when there is no value: no number could stand for that."""
    if not values:
        return None
    ordered = sorted(values)
    p50, p90, p95, p99 = (percentile(ordered, p) for p in PERCENTILES)
    return Distribution(len(ordered), statistics.fmean(ordered), p50, p90, p95, p99, ordered[-1])


def over_rounds(values: Sequence[float]) -> Rounds:
    """Median and spread of a figure; at least one value."""
    median = statistics.median(values)
    spread = (max(values) - min(values)) / median if median else 0.0
    return Rounds(median, spread, tuple(values))
