"""Where the events of requests lie between the engine thread and the event loop that reads them.

A reader that is behind does not make them pile up: the engine thread suspends the requests of a
full box, and goes on with them when the loop says that most of it has been read. Each number has
one writer, so that there is no lock: see `thread`.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from kokuban.core.errors import KokubanError
from kokuban.core.request import RequestId
from kokuban.core.step import TokenEvent

MAX_UNREAD = 64
"""Events of each request that may lie in a box before its requests are suspended."""

MIN_UNREAD = 16
"""They are woken when no more of each lie there."""

News = TokenEvent | KokubanError | None
"""An event; why the group was refused; None: the group was accepted."""


@dataclass(slots=True, eq=False)
class Mailbox:
    """Where the events of one group of requests arrive, on the loop of whoever submitted them."""

    loop: asyncio.AbstractEventLoop
    ids: tuple[RequestId, ...]
    unfinished: set[RequestId]
    news: deque[News] = field(default_factory=deque)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    posted: int = 0
    """Events that were sent here; written by the engine thread."""

    taken: int = 0
    """Those of them that were read; written by the loop."""

    suspended: bool = False
    """Whether its requests are; the engine thread's own."""

    num_suspensions: int = 0
    """Written by the engine thread, before the events that come before the suspension."""

    num_wakes: int = 0
    """How many of them the loop has asked to end."""

    @property
    def is_full(self) -> bool:
        return self.posted - self.taken > MAX_UNREAD * len(self.ids)

    def take(self) -> News:
        """The next piece of news."""
        self.taken += 1
        return self.news.popleft()

    @property
    def is_suspended_unread(self) -> bool:
        """Whether there is a suspension that the loop has not asked to end."""
        return self.num_wakes != self.num_suspensions

    @property
    def wants_more(self) -> bool:
        """Whether its requests were suspended and should go on; said once each time."""
        if not self.is_suspended_unread or len(self.news) > MIN_UNREAD * len(self.ids):
            return False
        self.num_wakes = self.num_suspensions
        return True


def put(letters: Sequence[tuple[Mailbox, News]]) -> None:
    """On the event loop: put letters into their boxes."""
    for box, news in letters:
        box.news.append(news)
        box.arrived.set()
