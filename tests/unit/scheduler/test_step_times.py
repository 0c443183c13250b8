"""Measured step times put the cost model right, by number of tokens and not by the hour."""

import random

import pytest
from tests.unit.scheduler.test_speculation import Dear

from kokuban.scheduler.step_times import StepTimes


class Model(Dear):
    """A step takes 10 ms, and each draft 1 ms more."""

    def decode_s(self, context_tokens: int, batch_size: int, num_drafts: int) -> float:
        return 0.010 + 0.001 * num_drafts


def ratio(times: StepTimes, num_drafts: int) -> float:
    """The price of so many drafts, in steps without."""
    return times.step_s(100, 1, num_drafts) / times.step_s(100, 1, 0)


def test_without_a_measurement_the_model_speaks() -> None:
    times = StepTimes(Model())

    assert times.step_s(100, 1, 4) == pytest.approx(0.014)
    assert times.step_s(100, 1, 0, num_others=64) == pytest.approx(0.074)


def test_a_machine_that_is_slow_as_a_whole_changes_no_ratio() -> None:
    times = StepTimes(Model())
    for _ in range(50):
        times.observe(100, 1, 0, 0.030)
        times.observe(100, 1, 4, 0.042)

    assert ratio(times, 4) == pytest.approx(1.4, rel=0.01)
    assert times.step_s(100, 1, 0) == pytest.approx(0.030, rel=0.01)


def test_drafts_that_are_dearer_than_the_model_says_are_found_out() -> None:
    times = StepTimes(Model())
    for _ in range(200):
        times.observe(100, 1, 0, 0.010)
        times.observe(100, 1, 4, 0.028)

    assert ratio(times, 4) == pytest.approx(2.8, rel=0.05)
    assert ratio(times, 3) == pytest.approx(2 * 1.3, rel=0.05)  # as its neighbour, twice the model


def test_a_change_of_the_machine_does_not_stick_to_a_number_of_tokens() -> None:
    times = StepTimes(Model())
    for _ in range(50):
        times.observe(100, 1, 0, 0.010)
        times.observe(100, 1, 4, 0.014)
    for _ in range(100):  # Half as fast from now on, and only drafts are seen.
        times.observe(100, 1, 4, 0.028)

    assert 1.1 < ratio(times, 4) < 1.8


def test_a_step_that_was_held_up_counts_little() -> None:
    times = StepTimes(Model())
    draw = random.Random(1)
    for _ in range(300):
        held_up = draw.random() < 0.02
        times.observe(100, 1, 4, 0.014 if not held_up else 1.0)
        times.observe(100, 1, 0, 0.010)

    assert ratio(times, 4) == pytest.approx(1.4, rel=0.15)


def test_a_clock_that_stands_still_says_nothing() -> None:
    times = StepTimes(Model())
    times.observe(100, 1, 4, 0.0)

    assert times.step_s(100, 1, 4) == pytest.approx(0.014)


def test_the_time_of_guessing_is_no_time_of_the_step() -> None:
    times = StepTimes(Model())
    for _ in range(100):
        times.observe(100, 1, 0, 0.020)
        times.observe(100, 1, 4, 2 * (0.014 + 0.006), guessing_s=0.006)

    assert ratio(times, 4) == pytest.approx(1.4, rel=0.01)
    assert times.scaled_s(0.006) == pytest.approx(0.012, rel=0.01)
