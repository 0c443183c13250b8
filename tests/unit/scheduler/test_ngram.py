"""Prompt lookup: which place is found, and what is guessed from it."""

import random
from collections.abc import Sequence

from kokuban.core.request import RequestId
from kokuban.core.speculation import Offer, Wanted
from kokuban.scheduler.ngram import MAX_MATCH, MAX_PLACES, NgramProposer

R = RequestId("r")


def guess(token_ids: Sequence[int], most: int = 4) -> tuple[int, ...]:
    """What a proposer that sees the sequence for the first time guesses."""
    proposer = NgramProposer()
    if not proposer.offer(R, token_ids, most).num_tokens:
        return ()
    [found] = proposer.propose([Wanted(R, token_ids, most)])
    return found


def test_a_text_that_never_repeats_has_no_guess() -> None:
    assert guess(range(100)) == ()
    assert guess([1]) == ()
    assert guess([]) == ()


def test_one_token_alone_is_no_match() -> None:
    assert guess([5, 1, 2, 3, 5]) == ()


def test_what_followed_the_last_two_tokens_is_the_guess() -> None:
    assert guess([7, 8, 1, 2, 3, 4, 7, 8]) == (1, 2, 3, 4)


def test_the_longest_match_wins_over_a_later_one() -> None:
    assert guess([1, 2, 3, 50, 51, 9, 2, 3, 60, 61, 1, 2, 3], 2) == (50, 51)


def test_of_equal_matches_the_last_one_wins() -> None:
    assert guess([9, 2, 3, 50, 51, 8, 2, 3, 60, 61, 7, 2, 3], 2) == (60, 61)


def test_a_match_that_reaches_the_end_goes_on_with_its_period() -> None:
    assert guess([4, 4, 4, 4], 5) == (4, 4, 4, 4, 4)
    assert guess([1, 2, 3, 1, 2, 3, 1, 2], 7) == (3, 1, 2, 3, 1, 2, 3)


def test_longer_matches_are_kinds_with_better_chances() -> None:
    proposer = NgramProposer()
    kinds = []
    for length in range(2, MAX_MATCH + 6):
        run = list(range(100, 100 + length))
        kinds.append(proposer.offer(RequestId(str(length)), [*run, 1, 2, 3, *run], 8).kind)

    assert kinds == sorted(kinds)
    assert set(kinds) == set(range(len(proposer.chances)))
    assert list(proposer.chances) == sorted(proposer.chances)


def test_growing_token_by_token_finds_what_the_whole_sequence_has() -> None:
    draw = random.Random(1)
    tokens = [draw.randrange(6) for _ in range(400)]
    grown = NgramProposer()

    for length in range(1, len(tokens)):
        offer = grown.offer(R, tokens[:length], 3)
        found = grown.propose([Wanted(R, tokens[:length], 3)]) if offer.num_tokens else [()]
        assert found == [guess(tokens[:length], 3)]


def test_the_guess_is_that_of_a_search_without_an_index() -> None:
    draw = random.Random(2)
    for _ in range(200):
        tokens = [draw.randrange(4) for _ in range(draw.randrange(2, 12))]
        assert guess(tokens, 1) == searched(tokens)


def searched(tokens: Sequence[int]) -> tuple[int, ...]:
    """The token after the longest earlier run that the sequence also ends with."""
    best = (1, -1)
    for end in range(1, len(tokens) - 1):
        length = 0
        while length <= end and tokens[end - length] == tokens[-1 - length]:
            length += 1
        if length >= 2:
            best = max(best, (length, end))
    return (tokens[best[1] + 1],) if best[1] >= 0 else ()


def test_only_the_last_places_are_looked_at() -> None:
    """A pair that is everywhere must not make a step slow."""
    long_match = [3, 1, 2, 77]
    tokens = [*long_match, *(token for i in range(MAX_PLACES) for token in (1, 2, 100 + i))]

    assert guess([*tokens, 3, 1, 2], 1) == (100 + MAX_PLACES - 1,)


def test_requests_do_not_see_each_other_and_leave_nothing() -> None:
    proposer = NgramProposer()
    assert proposer.offer(R, [1, 2, 3, 1, 2], 4) == Offer(4, kind=0)

    assert proposer.offer(RequestId("other"), [1, 2], 4) == Offer(0)
    proposer.forget(R)
    proposer.forget(RequestId("other"))
    proposer.forget(RequestId("never heard of"))

    assert proposer._sequences == proposer._places == {}
