"""Rows of logits lie at cache lines and not a power of two apart."""

import pytest

from kokuban.runner.logits_memory import empty_logits


@pytest.mark.parametrize(
    ("vocab_size", "width"), [(1, 16), (16, 16), (17, 32), (49_152, 49_168), (151_936, 151_936)]
)
def test_width_is_whole_cache_lines_and_no_multiple_of_2_kib(vocab_size: int, width: int) -> None:
    assert empty_logits(2, vocab_size).shape == (2, width)


@pytest.mark.parametrize("num_rows", range(1, 9))
def test_every_row_begins_at_a_cache_line(num_rows: int) -> None:
    logits = empty_logits(num_rows, 100)

    assert [row.ctypes.data % 64 for row in logits] == [0] * num_rows
    assert logits.flags.c_contiguous


def test_no_rows_take_no_memory() -> None:
    assert empty_logits(0, 49_152).shape == (0, 49_168)
