"""Cosines and sines of the rotary embedding, filled in as far as sequences have come."""

import numpy as np

from kokuban.runner.rope_tables import RUN, RopeTable


def test_entries_are_cos_and_sin_of_position_times_frequency() -> None:
    table = RopeTable([1.0, 0.25], factor=2.0, max_positions=3000)

    table.fill(3000)

    for position in (0, 1, RUN - 1, RUN, 2999):
        angles = position * np.array([1.0, 0.25])
        np.testing.assert_array_equal(table.array[position, 0], (np.cos(angles) * 2).astype("f4"))
        np.testing.assert_array_equal(table.array[position, 1], (np.sin(angles) * 2).astype("f4"))


def test_how_far_a_table_is_filled_does_not_change_an_entry() -> None:
    slowly = RopeTable([0.7, 0.01, 0.003], 1.0, 2500)
    for position in range(1, 2500, 97):
        slowly.fill(position)
    slowly.fill(2500)
    at_once = RopeTable([0.7, 0.01, 0.003], 1.0, 2500)
    at_once.fill(2500)

    np.testing.assert_array_equal(slowly.array, at_once.array)


def test_filling_beyond_the_end_fills_to_the_end() -> None:
    table = RopeTable([1.0], 1.0, 5)

    table.fill(10**6)

    assert table.array[4, 0, 0] == np.float32(np.cos(4.0))
