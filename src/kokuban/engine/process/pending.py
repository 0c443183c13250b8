"""What an engine process has been asked and has not answered, and who waits for it."""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import msgspec

from kokuban.core.errors import KokubanError, Overloaded, StepFailed
from kokuban.core.request import RequestId
from kokuban.engine.mailbox import Mailbox, Sorter
from kokuban.engine.process import wire
from kokuban.kvcache.events import Cursor, Replay

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Group:
    """Requests that were submitted together."""

    request_ids: set[RequestId]
    """Without those that were cancelled."""

    box: Mailbox

    def refuse(self, error: KokubanError) -> None:
        """On any thread: none of them runs."""
        self.box.route.carry([(self.box, error)])


@dataclass(slots=True, eq=False)
class Reader:
    """Who reads KV events, on the loop where it does."""

    loop: asyncio.AbstractEventLoop
    _news: deque[Replay | KokubanError | None] = field(default_factory=deque)
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, news: Replay | KokubanError | None) -> None:
        """On any thread: replays, then an error or None for the end."""

        def put() -> None:
            self._news.append(news)
            self._arrived.set()

        try:
            self.loop.call_soon_threadsafe(put)
        except RuntimeError:
            _log.debug("a reader of KV events is gone with its event loop")

    async def replays(self) -> AsyncIterator[Replay]:
        """What was put, up to the end."""
        while True:
            while not self._news:
                self._arrived.clear()
                await self._arrived.wait()
            news = self._news.popleft()
            if news is None:
                return
            if isinstance(news, KokubanError):
                raise news
            yield news


def fail(done: Future[Any], error: KokubanError) -> None:
    """Tell who waits, unless nobody does any more."""
    if done.set_running_or_notify_cancel():
        done.set_exception(error)


class Pending:
    """For one thread, but for `reserve` and `release`.

    Args:
        send: puts an encoded message on its way to the engine.
    """

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send
        self._groups: dict[int, Group] = {}
        """Those that the engine has neither accepted nor refused."""

        self._boxes = Sorter()
        self._calls: dict[int, tuple[wire.Ask, Future[Any]]] = {}
        self._readers: dict[int, Reader] = {}
        self._num_unanswered = 0
        """Requests of those groups, and of those that are on their way here."""

        self._counting = threading.Lock()

    @property
    def busy(self) -> bool:
        """Whether anybody waits for anything."""
        return bool(self._groups or self._boxes or self._calls)

    def reserve(self, num_requests: int, most: int) -> None:
        """On any thread: count requests that are about to be submitted.

        Raises:
            Overloaded: so many are waiting to be accepted that there is no room for them.
        """
        with self._counting:
            if self._num_unanswered + num_requests > most:
                raise Overloaded(
                    f"{self._num_unanswered} requests wait for the engine to take them; try again "
                    f"later"
                )
            self._num_unanswered += num_requests

    def release(self, num_requests: int) -> None:
        """On any thread: they are accepted, refused or not wanted any more."""
        with self._counting:
            self._num_unanswered -= num_requests

    def submit(self, number: int, message: bytes, group: Group) -> None:
        """Send a group that has its place, and whose box gets everything that comes of it."""
        self._groups[number] = group
        self._send(message)

    def cancel(self, request_id: RequestId) -> None:
        """Nobody waits for a request any more."""
        self._boxes.forget(request_id)
        for number, group in tuple(self._groups.items()):
            if request_id in group.request_ids:
                group.request_ids.remove(request_id)
                self.release(1)
                if not group.request_ids:  # One that waits for its grammar gets no answer now.
                    del self._groups[number]
        self._send(wire.encode(wire.Cancel((request_id,))))

    def suspend(self, request_ids: Collection[RequestId], begins: bool) -> None:
        """Nobody reads what these say, or somebody does again."""
        self._send(wire.encode(wire.Suspend(tuple(request_ids), begins)))

    def call(self, number: int, message: bytes, ask: wire.Ask, done: Future[Any]) -> None:
        """Send a question, whose answer becomes the result of `done`."""
        self._calls[number] = ask, done
        self._send(message)

    def watch(self, number: int, since: Cursor | None, reader: Reader) -> None:
        """Begin to read KV events."""
        self._readers[number] = reader
        self._send(wire.encode(wire.Watch(number, since)))

    def read_on(self, number: int) -> None:
        """The reader has taken what was sent."""
        if number in self._readers:
            self._send(wire.encode(wire.More(number)))

    def unwatch(self, number: int) -> None:
        """The reader is gone."""
        if self._readers.pop(number, None) is not None:
            self._send(wire.encode(wire.Unwatch(number)))

    def take(self, message: wire.FromEngine) -> None:
        """Hand over what a running engine says."""
        match message:
            case wire.Step(events):
                self._boxes.deliver(events)
            case wire.Accepted(numbers):
                for number in numbers:
                    if group := self._pop_group(number):
                        self._boxes.accept(group.request_ids, group.box)
            case wire.Refused(number, failure):
                if group := self._pop_group(number):
                    group.refuse(failure.error())
            case wire.Result():
                self._take_result(message)
            case wire.News():
                self._take_news(message)

    def fail_all(self, why: str, make_refusal: Callable[[], KokubanError]) -> None:
        """The engine is gone.

        Args:
            why: for those that it worked for.
            make_refusal: makes one for each of those that it may not have begun; each is raised
                where its requests are awaited, and would keep the traceback of every such place.
        """
        self._boxes.fail_all(why)
        for number in list(self._groups):
            if group := self._pop_group(number):
                group.refuse(make_refusal())
        for _, done in self._calls.values():
            fail(done, StepFailed(why))
        self._calls.clear()
        for reader in self._readers.values():
            reader.put(None)
        self._readers.clear()

    def _pop_group(self, number: int) -> Group | None:
        group = self._groups.pop(number, None)
        if group is not None:
            self.release(len(group.request_ids))
        return group

    def _take_result(self, result: wire.Result) -> None:
        if result.number not in self._calls:
            return
        ask, done = self._calls.pop(result.number)
        if not done.set_running_or_notify_cancel():
            return
        if result.failure is not None:
            done.set_exception(result.failure.error())
            return
        try:
            done.set_result(wire.read_answer(ask, result.value))
        except msgspec.MsgspecError as error:
            done.set_exception(StepFailed(f"the engine gave another kind of answer: {error}"))

    def _take_news(self, news: wire.News) -> None:
        reader = self._readers.get(news.number)
        if reader is None:
            return
        if news.replay is None:
            del self._readers[news.number]
        reader.put(news.replay if news.failure is None else news.failure.error())
