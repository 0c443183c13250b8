"""What the scheduler counts of its steps."""

from kokuban.scheduler.totals import Totals


def test_a_step_counts_where_its_size_lies_and_one_that_only_moves_blocks_counts_nowhere() -> None:
    totals = Totals()
    for num_tokens in (1, 2, 8, 9, 16_384, 16_385, 0):
        totals.count_step(num_tokens)

    assert totals.steps == 7
    assert totals.step_sizes == [1, 2, 1, *[0] * 9, 1, 1]
    assert totals.step_tokens == 1 + 2 + 8 + 9 + 16_384 + 16_385
