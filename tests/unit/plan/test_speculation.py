"""F22: what speculation is worth, and how many drafts pay."""

import random
from collections.abc import Sequence
from itertools import product

import pytest

from kokuban.plan.speculation import (
    MAX_DRAFTS_A_STEP,
    choose_lengths,
    expected_tokens,
    speed_up,
)


def test_expected_tokens_are_those_of_planning_row_t33() -> None:
    assert expected_tokens(0.8, 4) == pytest.approx(3.3616, abs=1e-12)
    assert expected_tokens(0.6, 3) == pytest.approx(2.176, abs=1e-12)
    assert expected_tokens(0.85, 1) == pytest.approx(1.85, abs=1e-12)


def test_the_speed_up_is_that_of_planning_row_t33() -> None:
    assert speed_up(0.8, 4, draft_cost=0.05, step_ratio=1.0) == pytest.approx(2.80, abs=0.005)
    assert speed_up(0.6, 3, draft_cost=0.05, step_ratio=1.0) == pytest.approx(1.89, abs=0.005)


def test_drafts_that_are_always_right_each_bring_a_token() -> None:
    assert expected_tokens(1.0, 7) == 8
    assert expected_tokens(0.0, 7) == 1
    assert expected_tokens(0.5, 0) == 1


def choose(
    chances: Sequence[float],
    most: Sequence[int],
    *,
    a_token_s: float = 0.0,
    a_round_s: float = 0.0,
    budget: int = 1000,
) -> list[int]:
    """With a step of one second and so many seconds more for each draft, and for guessing it."""
    return choose_lengths(
        chances,
        most,
        num_rows=len(chances),
        budget=budget,
        step_s=lambda count: 1 + a_token_s * count,
        round_s=lambda count: a_round_s,
    )


def test_drafts_that_cost_nothing_are_all_taken() -> None:
    assert choose([0.9, 0.1], [4, 3]) == [4, 3]


def test_drafts_that_cost_what_a_step_costs_are_never_taken() -> None:
    assert choose([0.9, 0.5], [4, 4], a_token_s=0.5) == [0, 0]


def test_a_request_with_better_chances_gets_more() -> None:
    # Two tokens a second at first; the drafts raise that to 3.18, and the next one, which brings
    # 0.8 ** 6 tokens for 0.1 s, would lower it.
    assert choose([0.8, 0.4], [16, 16], a_token_s=0.1) == [5, 1]


def test_the_price_of_guessing_counts() -> None:
    free = choose([0.7], [16], a_token_s=0.05)
    dear = choose([0.7], [16], a_token_s=0.05, a_round_s=0.3)

    assert dear[0] < free[0]


def test_a_round_of_guesses_is_shared() -> None:
    """Alone a guess at 0.5 s of a step does not pay; eight of them cost hardly more than one."""
    assert choose([0.4], [1], a_round_s=0.5) == [0]
    assert choose([0.4] * 8, [1] * 8, a_round_s=0.2) == [1] * 8


def test_a_step_that_is_dearer_at_first_may_pay_later() -> None:
    """The kernels take rows by fours: the first draft costs as much as the next three."""
    lengths = choose_lengths(
        [0.95],
        [8],
        num_rows=1,
        budget=8,
        step_s=lambda count: 1.0 if count == 0 else 2.0 + 3 * (count > 3),
        round_s=lambda count: 0.0,
    )

    assert lengths == [3]


def test_the_budget_and_the_cap_of_a_step_are_kept() -> None:
    assert choose([0.9, 0.8], [16, 16], budget=5) == [4, 1]
    assert sum(choose([0.99] * 20, [16] * 20)) == MAX_DRAFTS_A_STEP
    assert choose([0.9], [3], budget=0) == [0]


def test_who_has_no_offer_gets_nothing() -> None:
    assert choose([0.9, 0.9], [0, 2]) == [0, 2]
    assert choose([], []) == []


def test_no_other_lengths_are_better() -> None:
    """Against all lengths that there are, for prices that grow evenly."""
    draw = random.Random(3)
    for _ in range(60):
        chances = [draw.uniform(0.05, 0.98) for _ in range(3)]
        most = [draw.randint(0, 4) for _ in range(3)]
        a_token_s = draw.choice([0.02, 0.1, 0.3])

        def rate(lengths: Sequence[int], chances: Sequence[float], price_s: float) -> float:
            tokens = sum(map(expected_tokens, chances, lengths))
            return tokens / (1 + price_s * sum(lengths))

        best = max(
            rate(lengths, chances, a_token_s)
            for lengths in product(*(range(count + 1) for count in most))
        )
        chosen = choose(chances, most, a_token_s=a_token_s)
        assert rate(chosen, chances, a_token_s) == pytest.approx(best, rel=1e-12)
