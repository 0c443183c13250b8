"""What the engine tells about a session: a conversation whose KV outlives its requests."""

from dataclasses import dataclass
from typing import Literal

Place = Literal["pool", "below", "dropped"]
"""What was decided for its KV: it stays in the pool, it goes down to host memory and disk, or it is
given up, to be computed again."""

Origin = Literal["", "pool", "ram", "disk", "recompute"]
"""Where the KV of a session came from when it went on after a pause; "" if there was no pause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PausePrices:
    """What the decision of a pause rests on, in seconds of this machine's work."""

    stay_s: float
    """Work that is lost to others while the blocks stay: the pause times the share of the pool that
    they take, times how scarce blocks are."""

    move_s: float | None
    """Copying them down and up again; None where nothing lies below the pool."""

    recompute_s: float
    """Computing the conversation again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStatus:
    """One session, as it is now."""

    id: str
    active: bool
    """Whether a request of it waits or runs."""

    paused: bool
    num_tokens: int
    """Tokens whose KV it has, or had."""

    num_blocks: int
    """Blocks that hold these."""

    place: Place = "pool"
    expected_s: float | None = None
    """How long the pause is expected to take, from its beginning."""

    prices: PausePrices | None = None
    """Of the last decision."""
