"""What the scheduler asks of whoever guesses the next tokens of a request.

A guess (a draft token) is never trusted: the target model computes it together with the token that
was sampled last, and keeps it only if it is what that position samples. So a proposer decides about
time, never about text.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from kokuban.core.request import RequestId

NGRAM = "ngram"
"""The value of `--speculate` that needs no second model."""


class Offer(NamedTuple):
    """What a proposer could do for a request in the step that is being planned."""

    num_tokens: int
    """Most draft tokens; 0: it has no guess."""

    kind: int = 0
    """Which of the proposer's kinds of guesses it is: an index into `Proposer.chances`."""

    backlog: int = 0
    """Tokens that it would have to compute first, beyond those that a step leaves behind."""


class Wanted(NamedTuple):
    """A request that is to be given draft tokens."""

    request_id: RequestId
    token_ids: Sequence[int]
    """Its prompt and output so far; read during the call only."""

    num_tokens: int
    """Most draft tokens; 1 or more, and no more than were offered."""


class Proposer(Protocol):
    """Guesses how sequences go on. Called on the engine thread, between two steps."""

    @property
    def chances(self) -> Sequence[float]:
        """For each kind of guess how often a draft token is right, as far as is known beforehand,
        if all drafts before it were."""
        ...

    def offer(self, request_id: RequestId, token_ids: Sequence[int], most: int) -> Offer:
        """What it could guess. Cheap: computes nothing.

        Args:
            token_ids: prompt and output so far; from one call to the next they only grow.
            most: draft tokens that are of use.
        """
        ...

    def propose(self, wanted: Sequence[Wanted]) -> Sequence[tuple[int, ...]]:
        """Draft tokens for each, in order; fewer than wanted, or none, where it has none."""
        ...

    def round_s(self, num_requests: int, context_tokens: int) -> float:
        """Seconds that one draft token for each of so many requests takes, beside the step."""
        ...

    def forget(self, request_id: RequestId) -> None:
        """The request has ended; one that was never heard of is ignored."""
        ...

    def close(self) -> None:
        """Give back threads and memory."""
        ...
