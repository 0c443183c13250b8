"""Says why a prompt was not found in the prefix cache further than it was.

    tokens     0 ──────────── found ──────────── common ──────── limit | last
               | from the cache |  lost, or not yet there  | new text  |

`limit` is the prompt without its last token, which is always computed for its logits. A hit may end
inside a block or at the last whole one before it; a difference of less than a block is no loss.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from kokuban.server.nearest import Nearest

Reason = Literal[
    "hit",
    "new_text",
    "text_changed",
    "evicted",
    "reset",
    "concurrent",
    "other_scope",
    "no_prefix",
    "cache_off",
    "scored",
]
"""In words: see `MESSAGES`."""

MESSAGES: dict[Reason, str] = {
    "hit": "all that can come from the cache came from it: every token but the last",
    "new_text": "all of the nearest request was found, and this one goes on where it ended",
    "text_changed": "the text differs from the nearest request where the hit ended",
    "evicted": "the nearest request had more in common than was found: its KV had made room",
    "reset": "the nearest request had more in common than was found, but the cache was reset since",
    "concurrent": "the nearest request was still running, and its KV was not complete yet",
    "other_scope": "a request with another cache_salt had more in common; salts never share KV",
    "no_prefix": "no request that is remembered begins like this one",
    "cache_off": "this server runs without a prefix cache",
    "scored": "the prompt's logprobs or its mean were asked for: they need every token computed",
}


@dataclass(frozen=True, slots=True)
class Lookup:
    """What the cache was asked for, and what it gave."""

    num_prompt: int
    """Tokens of the prompt; 1 or more."""

    num_found: int
    admitted_s: float
    block_size: int
    is_cache_on: bool
    scores: bool
    """Whether the prompt's logprobs were asked for."""

    @property
    def limit(self) -> int:
        """Most tokens that can be found."""
        return self.num_prompt - 1

    def is_loss(self, num_tokens: int) -> bool:
        """Whether so many tokens from the start are more than was found, by the block."""
        return num_tokens // self.block_size * self.block_size > self.num_found


def plain_reason(lookup: Lookup) -> Reason | None:
    """The reason where no other request has to be looked at."""
    if lookup.num_found >= lookup.limit:
        return "hit"
    if not lookup.is_cache_on:
        return "cache_off"
    return "scored" if lookup.scores else None


def reason_of_miss(
    lookup: Lookup, own: Nearest | None, elsewhere: Nearest | None, resets: Sequence[float]
) -> Reason:
    """The reason otherwise.

    Args:
        own: the nearest sequence of the same tenant and scope.
        elsewhere: the nearest of the same tenant's other scopes.
        resets: times at which the cache was reset.
    """
    if own is not None:
        # With nothing different up to the limit, even a part of a block was lost.
        whole = own.num_available >= lookup.limit and own.was_ended
        if whole or lookup.is_loss(own.num_available):
            return "reset" if _was_reset(lookup, own, resets) else "evicted"
        common = min(own.num_common, lookup.limit)
        if not own.was_ended and (common == lookup.limit or lookup.is_loss(common)):
            return "concurrent"
    if elsewhere is not None and lookup.is_loss(min(elsewhere.num_available, lookup.limit)):
        return "other_scope"
    if own is None:
        return "no_prefix"
    return "new_text" if own.ends else "text_changed"


def _was_reset(lookup: Lookup, own: Nearest, resets: Sequence[float]) -> bool:
    """Whether it was forgotten on purpose. What a running request holds outlives a reset."""
    ended_s = own.past.ended_s
    return ended_s is not None and any(ended_s <= at_s <= lookup.admitted_s for at_s in resets)
