"""The longest common beginning, and what of it had been computed in time."""

from array import array
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kokuban.server.nearest import Nearest, Past, find_nearest, num_common_tokens
from kokuban.server.record import TOKEN_BYTES


def tokens(*ids: int) -> bytes:
    return array("i", ids).tobytes()


def past(
    name: str, *prompts: tuple[int, ...], outputs: dict[int, tuple[int, ...]] | None = None,
    computed_s: float = 1.0, ended_s: float | None = 2.0, n: int = 1,
) -> Past:  # fmt: skip
    """A request that ended at second 2."""
    said = {choice: array("i", ids) for choice, ids in (outputs or {}).items()}
    return Past(name, "", [tokens(*prompt) for prompt in prompts], said, n, computed_s, ended_s)


def nearest(prompt: tuple[int, ...], *pasts: Past, at_s: float = 5.0) -> Nearest:
    found = find_nearest(tokens(*prompt), pasts, at_s)
    assert found is not None
    return found


@given(st.integers(0, 900), st.integers(0, 900), st.booleans(), st.integers(0, 3))
def test_the_common_beginning_is_found_whatever_its_length(
    num_common: int, num_more: int, differs: bool, start: int
) -> None:
    ids = list(range(1, num_common + num_more + 1))
    other = ids[:num_common] + ([-1, *ids[num_common + 1 :]] if differs else [])
    prefix = tokens(*[7] * start)

    found = num_common_tokens(tokens(*other), prefix + tokens(*ids), len(prefix))

    assert found == num_common


@pytest.mark.parametrize("byte", range(TOKEN_BYTES))
def test_tokens_that_differ_in_one_byte_differ(byte: int) -> None:
    other = 5 ^ (1 << (8 * byte))

    assert num_common_tokens(tokens(1, other, 3), tokens(1, 5, 3)) == 1


def test_the_nearest_has_the_most_in_common() -> None:
    pasts = (past("a", (1, 2, 9)), past("b", (1, 2, 3, 9)), past("c", (9, 2, 3, 4)))

    found = nearest((1, 2, 3, 4, 5), *pasts)

    assert (found.past.request_id, found.num_common, found.ends) == ("b", 3, False)
    assert found.next_tokens == tokens(9)
    assert find_nearest(tokens(8), pasts, 5.0) is None


def test_of_equally_near_ones_the_first_counts_unless_it_came_too_late() -> None:
    late, old, older = (past(name, (1, 2, 3)) for name in ("late", "old", "older"))
    late = replace(late, computed_s=6.0, ended_s=None)

    assert nearest((1, 2, 4), old, older).past is old
    assert nearest((1, 2, 4), late, old, older).past is old


def test_a_conversation_goes_on_through_the_answer() -> None:
    turn = past("turn", (1, 2), outputs={0: (3, 4, 5)})

    whole = nearest((1, 2, 3, 4, 5, 6), turn)
    changed = nearest((1, 2, 3, 8, 5, 6), turn)
    before = nearest((1, 7), turn)

    assert (whole.choice, whole.num_common, whole.ends) == (0, 5, True)
    assert whole.num_available == 4, "the token that was sampled last is never computed"
    assert (changed.choice, changed.num_common, changed.num_available) == (0, 3, 3)
    assert changed.next_tokens == tokens(4, 5)
    assert (before.choice, before.num_common, before.next_tokens) == (None, 1, tokens(2))


def test_outputs_belong_to_the_prompts_that_they_follow() -> None:
    """Two prompts, two choices each; the outputs of the other prompt do not count."""
    two = past("two", (1,), (2,), outputs={0: (3,), 1: (4, 5), 2: (4, 6), 3: (7,)}, n=2)

    found = nearest((2, 4, 5), two)
    other = nearest((1, 4, 5, 9), two)

    assert (found.prompt, found.choice, found.num_common) == (1, 2, 2)
    assert (other.prompt, other.choice, other.num_common) == (0, 1, 3)


@pytest.mark.parametrize(
    ("at_s", "available", "was_ended"), [(0.5, 0, False), (1.5, 2, False), (2.0, 4, True)]
)
def test_only_what_was_computed_in_time_was_available(
    at_s: float, available: int, was_ended: bool
) -> None:
    found = nearest((1, 2, 3, 4, 5), past("r", (1, 2), outputs={0: (3, 4, 9)}), at_s=at_s)

    assert found.num_common == 4
    assert (found.num_available, found.was_ended) == (available, was_ended)


def test_a_prompt_without_output_is_available_whole() -> None:
    found = nearest((1, 2, 3, 4), past("scored", (1, 2, 3)))

    assert (found.num_common, found.num_available, found.ends) == (3, 3, True)
