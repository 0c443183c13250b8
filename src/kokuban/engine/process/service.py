"""The engine's side: messages become calls of an `EngineThread`, its answers messages.

All of it runs on the child's event loop but `WireRoute.carry`, which the engine thread calls once a
step.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec

from kokuban.core.errors import KokubanError, RequestError, StepFailed
from kokuban.core.step import TokenEvent
from kokuban.engine import mailbox
from kokuban.engine.client import EngineStats
from kokuban.engine.process import wire
from kokuban.engine.process.outbox import HEARTBEAT_S, Outbox
from kokuban.engine.thread import EngineThread

LOOK_S = 0.1
"""How late the server knows of numbers that changed without an event."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class WireRoute:
    """To boxes in the server process: one message for a step."""

    outbox: Outbox
    stats: Callable[[], EngineStats]

    def carry(self, letters: Sequence[tuple[mailbox.Box, mailbox.News]]) -> None:
        """Called on the engine thread, which waits here while nobody reads."""
        events: list[TokenEvent] = []
        for box, news in letters:
            if isinstance(news, TokenEvent):
                events.append(news)
                continue
            group = cast("WireBox", box).group
            if news is None:
                self.outbox.put(wire.Accepted((group,)))
            else:
                self.outbox.put(wire.Refused(group, wire.Failure.of(news)))
        if events:
            self.outbox.put(wire.Step(tuple(events), self.stats()), waits=True)


@dataclass(frozen=True, slots=True, eq=False)
class WireBox:
    """A group of the server process."""

    route: WireRoute
    group: int


@dataclass(slots=True, eq=False)
class _Watch:
    """A reader of KV events in the server process."""

    more: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


class Service:
    """Does what the server asks, until it says stop or the engine dies."""

    def __init__(self, engine: EngineThread, outbox: Outbox) -> None:
        self._engine = engine
        self._outbox = outbox
        self._route = WireRoute(outbox, engine.stats)
        self._tasks: set[asyncio.Task[None]] = set()
        self._watches: dict[int, _Watch] = {}
        self._stopped = asyncio.Event()

    def take(self, data: bytes) -> None:
        """Do what a message says. One that cannot be read is told of, and does no harm."""
        try:
            message = wire.to_engine(data)
        except Exception as error:  # noqa: BLE001 - whatever it is, the engine goes on
            _log.warning(
                "a message of %d bytes from the server cannot be read: %s", len(data), error
            )
            self._reject(data, error)
            return
        match message:
            case wire.Submit(group, requests):
                self._engine.submit_to(requests, WireBox(self._route, group))
            case wire.Cancel(request_ids):
                for request_id in request_ids:
                    self._engine.cancel(request_id)
            case wire.Suspend(request_ids, begins):
                self._engine.suspend(request_ids, begins)
            case wire.Call(number, ask):
                self._begin(self._answer(number, ask))
            case wire.Stop():
                self._stopped.set()
            case _:
                self._take_of_watch(message)

    def _take_of_watch(self, message: wire.Watch | wire.More | wire.Unwatch) -> None:
        number = message.number
        if isinstance(message, wire.Watch):
            watch = self._watches[number] = _Watch()
            watch.task = self._begin(self._tell(message, watch))
        elif number in self._watches:
            watch = self._watches[number]
            if isinstance(message, wire.More):
                watch.more.set()
            elif watch.task is not None:
                del self._watches[number]
                watch.task.cancel()

    async def run(self) -> bool:
        """Tell now and then that this process lives, and how things stand.

        Returns:
            True if it was stopped, False if the engine died.
        """
        loop = asyncio.get_running_loop()
        told, told_s = None, loop.time()
        while not self._stopped.is_set() and self._engine.alive():
            stats, now_s = self._engine.stats(), loop.time()
            if (stats is not told or now_s - told_s >= HEARTBEAT_S) and self._outbox.empty:
                told, told_s = stats, now_s
                self._outbox.put(wire.Heartbeat(stats))
            try:
                async with asyncio.timeout(LOOK_S):
                    await self._stopped.wait()
            except TimeoutError:
                continue
        return self._stopped.is_set()

    def close(self) -> None:
        """End what still waits."""
        for task in self._tasks:
            task.cancel()

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _answer(self, number: int, ask: wire.Ask) -> None:
        try:
            value = wire.encode(await _ask(self._engine, ask))
        except Exception as error:  # noqa: BLE001 - whoever asked is told
            if not isinstance(error, KokubanError):
                _log.exception("%s failed", type(ask).__name__)
                error = StepFailed("the engine failed at this; see the server's log")
            self._fail_call(number, error)
        else:
            self._outbox.put(wire.Result(number, msgspec.Raw(value)))

    def _fail_call(self, number: int, error: Exception) -> None:
        nothing = msgspec.Raw(wire.encode(None))
        self._outbox.put(wire.Result(number, nothing, wire.Failure.of(error)))

    async def _tell(self, asked: wire.Watch, watch: _Watch) -> None:
        """One replay after the other, each when the one before it has been read."""
        failure = None
        try:
            async with aclosing(self._engine.kv_events(asked.since)) as replays:
                async for replay in replays:
                    watch.more.clear()
                    self._outbox.put(wire.News(asked.number, replay))
                    await watch.more.wait()
        except KokubanError as error:
            failure = wire.Failure.of(error)
        finally:
            self._watches.pop(asked.number, None)
        self._outbox.put(wire.News(asked.number, failure=failure))

    def _reject(self, data: bytes, error: Exception) -> None:
        """Answer a message that cannot be read, as far as its head can."""
        try:
            kind, number, *_ = msgspec.msgpack.decode(data)
        except (msgspec.DecodeError, TypeError, ValueError):
            return
        refusal = RequestError(f"the engine cannot read this request: {error}")
        if not isinstance(number, int):
            return
        if kind == wire.Submit.__name__:
            self._outbox.put(wire.Refused(number, wire.Failure.of(refusal)))
        elif kind == wire.Call.__name__:
            self._fail_call(number, refusal)
        elif kind == wire.Watch.__name__:
            self._outbox.put(wire.News(number, failure=wire.Failure.of(refusal)))


async def _ask(engine: EngineThread, ask: wire.Ask) -> object:
    """The answer of the engine, of the type in `wire.ANSWERS`."""
    match ask:
        case wire.ResetPrefixCache():
            return await engine.reset_prefix_cache()
        case wire.PauseSession(tenant, session, expected_s, tools):
            return await engine.pause_session(tenant, session, expected_s=expected_s, tools=tools)
        case wire.ResumeSession(tenant, session):
            return await engine.resume_session(tenant, session)
        case wire.DeleteSession(tenant, session):
            return await engine.delete_session(tenant, session)
        case wire.GetSession(tenant, session):
            return await engine.session_status(tenant, session)
