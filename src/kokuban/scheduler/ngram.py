"""Guesses that a sequence goes on as it did before: prompt lookup.

The last tokens of prompt and output are looked for earlier in the same sequence; what followed
there is the guess. Of all places the one with the longest match is taken, and of equals the last.
Editing, quoting and repeating are full of such places; a text that says new things has few, and its
short matches are seldom right, which the scheduler finds out.

    … def area ( r ) : return 3 …          … def area ( |  r ) : return 3
          ╰───────────╯ match                ╰────────╯   ╰── drafts

An index of pairs of tokens leads to the places: for each pair where it was last, for each place
where its pair was before. One entry for each token, whatever the length of the matches.
"""

from array import array
from collections.abc import Sequence

from kokuban.core.request import RequestId
from kokuban.core.speculation import Offer, Wanted

MAX_MATCH = 24
"""Tokens of a match that are counted: longer ones are no better."""

MAX_PLACES = 16
"""Places that are looked at, from the last one back."""

MAX_INDEXED = 65_536
"""Tokens of a sequence that are indexed: the last ones it had when it was first looked at, and
all that follow."""

_KINDS = (2, 3, 4, 6, 9, 13, 19)
"""Kind k: matches of so many tokens or more, and fewer than of kind k + 1."""

_CHANCES = (0.3, 0.45, 0.6, 0.75, 0.85, 0.9, 0.95)
"""Guesses of how often a draft of each kind is right; each engine measures its own."""

_NOWHERE = -1


class Sequences:
    """The index of one request. Appending a token is O(1)."""

    def __init__(self, num_tokens: int) -> None:
        self._first = max(0, num_tokens - MAX_INDEXED)
        self._last_at: dict[int, int] = {}
        self._before = array("q")
        """Entry p - first: where the pair that ends at p ended before."""

    def extend(self, token_ids: Sequence[int]) -> None:
        """Index what is new: pairs that end at each token but the last one."""
        begin, last_at, before = self._first + len(self._before), self._last_at, self._before
        if begin == self._first and begin < len(token_ids) - 1:
            before.append(_NOWHERE)  # The first token ends no pair.
            begin += 1
        for position in range(begin, len(token_ids) - 1):
            pair = _pair(token_ids, position)
            before.append(last_at.get(pair, _NOWHERE))
            last_at[pair] = position

    def longest_match(self, token_ids: Sequence[int]) -> tuple[int, int]:
        """Where tokens end that are also the last ones of the sequence, and how many they are.

        Returns:
            The position, below the last one; and 2 to MAX_MATCH, or 0 if there is no such place.
        """
        if len(token_ids) < 2:
            return _NOWHERE, 0
        end = len(token_ids) - 1
        place = self._last_at.get(_pair(token_ids, end), _NOWHERE)
        best, longest = _NOWHERE, 0
        for _ in range(MAX_PLACES):
            if place == _NOWHERE or longest == MAX_MATCH:
                break
            length = _match_length(token_ids, place, end)
            if length > longest:
                best, longest = place, length
            place = self._before[place - self._first]
        return best, longest


class NgramProposer:
    """See the module. Knows no model: guessing takes microseconds of the step."""

    chances = _CHANCES

    def __init__(self) -> None:
        self._sequences: dict[RequestId, Sequences] = {}
        self._places: dict[RequestId, int] = {}
        """Where the match ends that was offered last."""

    def offer(self, request_id: RequestId, token_ids: Sequence[int], most: int) -> Offer:
        """See `Proposer`."""
        sequences = self._sequences.get(request_id)
        if sequences is None:
            sequences = self._sequences[request_id] = Sequences(len(token_ids))
        sequences.extend(token_ids)
        place, length = sequences.longest_match(token_ids)
        if length == 0:
            return Offer(0)
        self._places[request_id] = place
        kind = max(kind for kind, least in enumerate(_KINDS) if length >= least)
        return Offer(most, kind)

    def propose(self, wanted: Sequence[Wanted]) -> list[tuple[int, ...]]:
        """What followed the matches that were offered last.

        Where the match overlaps the end of the sequence, that has a period and goes on with it.
        """
        found = []
        for request_id, token_ids, num_tokens in wanted:
            first = self._places[request_id] + 1
            period = len(token_ids) - first
            found.append(tuple(token_ids[first + i % period] for i in range(num_tokens)))
        return found

    def round_s(self, num_requests: int, context_tokens: int) -> float:
        """Nothing that counts."""
        del num_requests, context_tokens
        return 0.0

    def forget(self, request_id: RequestId) -> None:
        """See `Proposer`."""
        self._sequences.pop(request_id, None)
        self._places.pop(request_id, None)

    def close(self) -> None:
        """There is nothing to give back."""


def _pair(token_ids: Sequence[int], end: int) -> int:
    """One number for the token at `end` and the one before it: smaller than a tuple."""
    return token_ids[end - 1] << 32 | token_ids[end]


def _match_length(token_ids: Sequence[int], place: int, end: int) -> int:
    """How many tokens up to `place` are those up to `end`. The last two are."""
    length = 2
    most = min(MAX_MATCH, place + 1)
    while length < most and token_ids[place - length] == token_ids[end - length]:
        length += 1
    return length
