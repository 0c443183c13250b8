"""Percentiles by the rule that outputs name, and spreads over rounds."""

import numpy as np
import pytest

from kokuban.bench.stats import Distribution, Rounds, distribution, over_rounds, percentile


@pytest.mark.parametrize(
    ("p", "expected"), [(0, 10.0), (50, 25.0), (90, 37.0), (99, 39.7), (100, 40.0)]
)
def test_a_percentile_lies_between_the_ranks_beside_it(p: float, expected: float) -> None:
    assert percentile([10, 20, 30, 40], p) == pytest.approx(expected, rel=1e-12)


def test_the_rule_is_the_default_of_numpy() -> None:
    values = sorted(np.random.default_rng(1).standard_exponential(37).tolist())

    for p in (0, 1, 33.3, 50, 95, 99, 100):
        assert percentile(values, p) == pytest.approx(float(np.percentile(values, p)), rel=1e-12)


def test_a_single_value_is_every_percentile() -> None:
    assert distribution([7.0]) == Distribution(1, 7, 7, 7, 7, 7, 7)


def test_values_need_not_be_in_order() -> None:
    assert distribution([3, 1, 2]) == Distribution(
        3, 2, 2, pytest.approx(2.8), pytest.approx(2.9), pytest.approx(2.98), 3
    )


def test_nothing_measured_is_no_number() -> None:
    assert distribution([]) is None


def test_rounds_are_told_by_their_median_and_how_far_they_lie_apart() -> None:
    assert over_rounds([2.0, 5.0, 4.0]) == Rounds(4.0, 0.75, (2.0, 5.0, 4.0))
    assert over_rounds([0.0, 0.0]) == Rounds(0.0, 0.0, (0.0, 0.0))
