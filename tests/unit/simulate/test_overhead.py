"""Overheads are differences of steps: with a timer that counts what it is asked, by hand."""

from kokuban.simulate.overhead import Overheads, measure_overheads


def test_steps_of_equal_time_have_no_rows_and_no_tokens() -> None:
    """Each call of the timer is a second later, so that every step takes one."""
    ticks = iter(range(10**6))

    assert measure_overheads(rounds=8, timer=lambda: float(next(ticks))) == Overheads(1.0, 0.0, 0.0)


def test_rows_and_tokens_cost_what_their_steps_take_more() -> None:
    """Steps of one row take 3 s, of 33 rows 35 s, of a prompt 2,051 s."""
    starts = [index // 2 * 10_000 for index in range(2 * 8 * 2 + 2 * 3)]
    lengths = [3] * 8 + [35] * 8 + [2051] * 3
    ticks = iter(
        start + (lengths[index // 2] if index % 2 else 0) for index, start in enumerate(starts)
    )

    assert measure_overheads(rounds=8, timer=lambda: float(next(ticks))) == Overheads(2.0, 1.0, 1.0)


def test_the_real_loop_takes_time_for_each_row() -> None:
    overheads = measure_overheads(rounds=30)

    assert 0 < overheads.step_s < 0.1
    assert 0 < overheads.row_s < 0.01
