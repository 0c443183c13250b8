"""How news of requests reach whoever waits for them, one hand-over for each step.

An engine sorts its events into boxes, one for each group of requests. Boxes that lie behind the
same route (an event loop, a socket) get theirs together, however many there are.

A reader that is behind does not make its news pile up: the requests of a full box are suspended,
and go on when most of it has been read.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol, cast

from kokuban.core.errors import KokubanError
from kokuban.core.request import FinishReason, Request, RequestId
from kokuban.core.step import TokenEvent

logger = logging.getLogger(__name__)

News = TokenEvent | KokubanError | None
"""An event; why the group was refused; None: the group was accepted."""


Flow = Callable[[Collection[RequestId], bool], None]
"""Suspends requests (True) or lets them go on (False). Each suspension is taken back."""

MAX_UNREAD = 64
"""Events of each request that may lie in a box before its requests are suspended."""

MIN_UNREAD = 16
"""They go on when no more than so many of each lie there."""


class Box(Protocol):
    """Where the news of one group of requests go."""

    @property
    def route(self) -> "Route": ...


class Route(Protocol):
    """The way to some boxes. Equal routes are one."""

    def carry(self, letters: "Sequence[tuple[Box, News]]") -> None:
        """Hand over what one step brought, in order. Called on the engine's thread."""
        ...


@dataclass(frozen=True, slots=True)
class LoopRoute:
    """To boxes on an event loop, with one wake-up."""

    loop: asyncio.AbstractEventLoop

    def carry(self, letters: Sequence[tuple[Box, News]]) -> None:
        """Lost when the loop is closed: nobody waits there any more."""
        try:
            self.loop.call_soon_threadsafe(_put, cast("Letters", letters))
        except RuntimeError:
            logger.debug("dropped %d events of a closed event loop", len(letters))


@dataclass(slots=True, eq=False)
class Mailbox:
    """A box on the event loop of whoever submitted the group."""

    route: LoopRoute
    request_ids: tuple[RequestId, ...]
    flow: Flow
    unfinished: set[RequestId]
    news: deque[News] = field(default_factory=deque)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    suspended: bool = False
    closed: bool = False

    def put(self, news: News) -> None:
        """On the loop, as everything below."""
        if self.closed:
            return
        self.news.append(news)
        self.arrived.set()
        if not self.suspended and len(self.news) > MAX_UNREAD * len(self.request_ids):
            self.suspended = True
            self.flow(self.request_ids, True)

    def take(self) -> News:
        """The oldest news."""
        news = self.news.popleft()
        if len(self.news) <= MIN_UNREAD * len(self.request_ids):
            self.go_on()
        return news

    def close(self) -> None:
        """Nobody reads any more; what still comes is dropped."""
        self.closed = True
        self.news.clear()
        self.go_on()

    def go_on(self) -> None:
        """Take the suspension back, if there is one."""
        if self.suspended:
            self.suspended = False
            self.flow(self.request_ids, False)


def open_mailbox(requests: Sequence[Request], flow: Flow) -> Mailbox:
    """A box for these requests on the loop that runs here."""
    route = LoopRoute(asyncio.get_running_loop())
    ids = tuple(request.id for request in requests)
    return Mailbox(route, ids, flow, set(ids))


async def events_of(
    begin: Callable[[], Mailbox], cancel: Callable[[RequestId], None]
) -> AsyncIterator[TokenEvent]:
    """What comes into a box, up to the end of the last request.

    Args:
        begin: submits the requests, when iteration begins.
        cancel: gets what is left when the iterator is closed early.

    Raises:
        KokubanError: the group was refused.
    """
    box = begin()
    try:
        while box.unfinished or box.news:
            if not box.news:
                box.arrived.clear()
                await box.arrived.wait()
                continue
            news = box.take()
            if isinstance(news, KokubanError):
                box.unfinished.clear()
                raise news
            if news is not None:
                if news.finish is not None:
                    box.unfinished.discard(news.request_id)
                yield news
    finally:
        box.close()
        for request_id in box.unfinished:
            cancel(request_id)


class Sorter:
    """Knows which box the events of which request go to. For one thread."""

    def __init__(self) -> None:
        self._boxes: dict[RequestId, Box] = {}

    def __len__(self) -> int:
        """Requests that have not ended."""
        return len(self._boxes)

    def accept(self, request_ids: Collection[RequestId], box: Box) -> None:
        """Their events go to the box from now on, which is told first that they run."""
        for request_id in request_ids:
            self._boxes[request_id] = box
        self._post([(box, None)])

    def refuse(self, box: Box, error: KokubanError) -> None:
        """Tell why a group does not run."""
        self._post([(box, error)])

    def forget(self, request_id: RequestId) -> None:
        """Nobody waits for it any more; unknown ids are ignored."""
        self._boxes.pop(request_id, None)

    def deliver(self, events: Sequence[TokenEvent]) -> None:
        """Hand events over, each to its box; those that nobody waits for are dropped."""
        letters: list[tuple[Box, News]] = []
        for event in events:
            box = self._boxes.get(event.request_id)
            if box is None:
                continue
            if event.finish is not None:
                del self._boxes[event.request_id]
            letters.append((box, event))
        if letters:
            self._post(letters)

    def fail_all(self, why: str) -> None:
        """End everything that has not ended, with an error."""
        self.deliver(
            [
                TokenEvent(request_id, (), finish=FinishReason.ERROR, error=why)
                for request_id in self._boxes
            ]
        )

    def _post(self, letters: Sequence[tuple[Box, News]]) -> None:
        by_route: dict[Route, list[tuple[Box, News]]] = {}
        for letter in letters:
            by_route.setdefault(letter[0].route, []).append(letter)
        for route, batch in by_route.items():
            route.carry(batch)


Letters = Sequence[tuple[Mailbox, News]]


def _put(letters: Letters) -> None:
    """On the event loop: put letters into their boxes."""
    for box, news in letters:
        box.put(news)
