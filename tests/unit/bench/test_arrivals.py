"""Arrivals: the same under the same seed, and as often as asked."""

import math
import random
from itertools import islice, pairwise

import pytest

from kokuban.bench.arrivals import arrival_times, check_process, schedule
from kokuban.core.errors import ConfigError


def first(
    process: str, rate: float, count: int, *, burst_size: int = 3, seed: int = 7
) -> list[float]:
    draw = random.Random(seed)
    times = arrival_times(check_process(process), rate, burst_size=burst_size, draw=draw)
    return list(islice(times, count))


def test_poisson_arrivals_follow_the_seed_alone() -> None:
    assert first("poisson", 5, 4) == first("poisson", 5, 4)
    assert first("poisson", 5, 4) != first("poisson", 5, 4, seed=8)
    draw = random.Random(7)
    gaps = [draw.expovariate(5) for _ in range(2)]
    assert first("poisson", 5, 2) == [gaps[0], gaps[0] + gaps[1]]


def test_poisson_gaps_have_the_mean_and_the_deviation_of_an_exponential() -> None:
    times = [0.0, *first("poisson", 4, 20_000)]

    gaps = [b - a for a, b in pairwise(times)]

    mean = sum(gaps) / len(gaps)
    deviation = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps))
    assert mean == pytest.approx(0.25, rel=0.03)
    assert deviation == pytest.approx(0.25, rel=0.03)


def test_constant_arrivals_are_equally_far_apart() -> None:
    assert first("constant", 4, 4) == [0, 0.25, 0.5, 0.75]


def test_a_burst_comes_at_once_and_the_rate_holds_over_bursts() -> None:
    assert first("burst", 6, 7) == [0, 0, 0, 0.5, 0.5, 0.5, 1.0]


@pytest.mark.parametrize("process", ["poisson", "constant", "burst"])
def test_at_an_infinite_rate_all_come_at_once(process: str) -> None:
    assert first(process, math.inf, 3) == [0, 0, 0]


def test_a_schedule_ends_with_what_ends_first() -> None:
    def times() -> list[float]:
        return [0.0, 1.0, 2.0, 3.0]

    assert schedule(iter(times()), num_requests=2, duration_s=0) == [0, 1]
    assert schedule(iter(times()), num_requests=0, duration_s=2) == [0, 1]
    assert schedule(iter(times()), num_requests=3, duration_s=9) == [0, 1, 2]


def test_a_schedule_without_an_end_is_refused() -> None:
    with pytest.raises(ConfigError, match="give --requests or --duration"):
        schedule(iter([0.0]), num_requests=0, duration_s=0)
    all_at_once = arrival_times("poisson", math.inf, burst_size=1, draw=random.Random(1))
    with pytest.raises(ConfigError, match="more than 1,000,000 requests arrive"):
        schedule(all_at_once, num_requests=0, duration_s=1)


def test_an_unknown_process_is_refused() -> None:
    with pytest.raises(ConfigError, match="--arrival weibull is none of poisson, constant, burst"):
        check_process("weibull")
