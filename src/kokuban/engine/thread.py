"""The engine on a thread of its own, reached from an event loop: the in-process `EngineClient`.

Two queues cross the border: what is asked (submit, cancel) goes in, events come out. After each
step every event loop that waits for something is woken once, however many requests it has. KV
events stay in their log, which may be read from any thread; whoever waits for them is woken once a
step too.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

from kokuban.core.errors import KokubanError, RequestError, ShuttingDown, StepFailed
from kokuban.core.request import Request, RequestId
from kokuban.core.session import SessionStatus
from kokuban.core.step import TokenEvent
from kokuban.engine.client import EngineInfo, EngineStats
from kokuban.engine.core import EngineCore
from kokuban.engine.grammars import GrammarStore
from kokuban.engine.kv_memory import Doorbell
from kokuban.engine.mailbox import Box, Mailbox, Sorter, events_of, open_mailbox
from kokuban.kvcache.events import Cursor, Replay
from kokuban.sampling.grammar import CompiledGrammar
from kokuban.scheduler.sessions import SessionKey

logger = logging.getLogger(__name__)

DEADLINE_S = 0.1
"""How late a deadline may be noticed while nothing can run."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Submission:
    """In the inbox: requests to queue, and where their events go."""

    requests: Sequence[Request]
    box: Box
    compiled: CompiledGrammar | None = None
    """Their grammar, held so that the engine finds it whenever their turn comes."""


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """In the inbox: something to ask the core between two steps."""

    ask: Callable[[EngineCore], Any]
    done: Future[Any]


@dataclass(frozen=True, slots=True)
class Suspension:
    """In the inbox: requests that are to wait, or to go on."""

    request_ids: Collection[RequestId]
    begins: bool


Letter = Submission | Call | Suspension | RequestId
"""The last are requests to cancel."""


@dataclass(frozen=True, slots=True, eq=False)
class Watcher:
    """Waits on its loop for KV events."""

    loop: asyncio.AbstractEventLoop
    arrived: asyncio.Event = field(default_factory=asyncio.Event)


class EngineThread:
    """Owns the thread that runs an `EngineCore`. Every public method is safe on any thread."""

    def __init__(
        self,
        core: EngineCore,
        info: EngineInfo,
        doorbell: Doorbell | None = None,
        grammars: GrammarStore | None = None,
    ) -> None:
        self._core = core
        self._grammars = grammars
        self._preparing: set[RequestId] = set()
        """Requests from their submission with a grammar until the engine thread takes them, unless
        they are cancelled meanwhile; under `_wake`."""

        self._compiled: dict[RequestId, CompiledGrammar] = {}
        """Grammars of requests that have not ended. For the engine thread."""

        self._info = info
        self._inbox: deque[Letter] = deque()
        self._wake = threading.Condition()
        self._stopping = False
        self._rung = False
        self._ended = False
        self._failure: BaseException | None = None
        self._boxes = Sorter()
        self._watchers: tuple[Watcher, ...] = ()
        """Replaced under `_wake`, never changed, so that the engine thread reads it without."""

        self._told: Cursor | None = None
        """How far the watchers know the log."""

        self._stats = EngineStats(num_blocks=info.num_blocks, free_blocks=info.num_blocks)
        if doorbell is not None:
            doorbell.answer_with(self._ring)
        self._thread = threading.Thread(target=self._run, name="kokuban-engine", daemon=True)
        self._thread.start()

    @property
    def info(self) -> EngineInfo:
        return self._info

    def stats(self) -> EngineStats:
        return self._stats

    def ready(self) -> bool:
        return self.alive() and not self._stopping

    def alive(self) -> bool:
        return self._failure is None and self._thread.is_alive()

    def cancel(self, request_id: RequestId) -> None:
        with self._wake:
            self._preparing.discard(request_id)
        self._put_in(request_id)

    async def reset_prefix_cache(self) -> int:
        """See `EngineClient.reset_prefix_cache`."""
        return await self._ask(lambda core: core.reset_prefix_cache())

    async def pause_session(
        self, tenant: str, session: str, *, expected_s: float | None, tools: Sequence[str] = ()
    ) -> SessionStatus | None:
        """See `EngineClient.pause_session`."""
        key = SessionKey(tenant, session)
        return await self._ask(lambda core: core.pause_session(key, expected_s, tools))

    async def resume_session(self, tenant: str, session: str) -> SessionStatus | None:
        """See `EngineClient.resume_session`."""
        key = SessionKey(tenant, session)
        return await self._ask(lambda core: core.resume_session(key))

    async def delete_session(self, tenant: str, session: str) -> bool:
        """See `EngineClient.delete_session`."""
        key = SessionKey(tenant, session)
        return await self._ask(lambda core: core.delete_session(key))

    async def session_status(self, tenant: str, session: str) -> SessionStatus | None:
        """See `EngineClient.session_status`."""
        key = SessionKey(tenant, session)
        return await self._ask(lambda core: core.session_status(key))

    async def _ask(self, ask: Callable[[EngineCore], Result]) -> Result:
        """What the core answers between two steps."""
        self._check_running()
        done: Future[Result] = Future()
        self._put_in(Call(ask, done))
        return await asyncio.wrap_future(done)

    async def kv_events(self, since: Cursor | None = None) -> AsyncGenerator[Replay]:
        """See `EngineClient.kv_events`."""
        self._check_running()
        log = self._core.log
        if log is None:
            raise RequestError(
                "this server has no prefix cache, so that there are no KV events; start it without "
                "--no-prefix-cache",
                code="no_prefix_cache",
            )
        log.start()
        watcher = Watcher(asyncio.get_running_loop())
        with self._wake:
            self._watchers = (*self._watchers, watcher)
        try:
            replay = log.since(log.cursor if since is None else since)
            yield replay
            while not self._ended:
                watcher.arrived.clear()  # before the look into the log: what comes later, sets it
                replay = log.since(replay.cursor)
                if replay.events or replay.is_gap:
                    yield replay
                elif not self._ended:
                    await watcher.arrived.wait()
        finally:
            with self._wake:
                self._watchers = tuple(each for each in self._watchers if each is not watcher)

    def submit(self, requests: Sequence[Request]) -> AsyncIterator[TokenEvent]:
        """See `EngineClient.submit`."""

        def begin() -> Mailbox:
            self._check_running()
            box = open_mailbox(requests, self.suspend)
            self.submit_to(requests, box)
            return box

        return events_of(begin, self.cancel)

    def submit_to(self, requests: Sequence[Request], box: Box) -> None:
        """As `submit`, for who has a box of its own; does not fail, but tells the box."""
        source = next((each.params.grammar for each in requests if each.params.grammar), None)
        if source is None:
            self._put_in(Submission(requests, box))
        else:
            self._prepare(requests, box, source)

    def _prepare(self, requests: Sequence[Request], box: Box, source: str) -> None:
        """Put requests in when their grammar is compiled; all of a group have the same one."""
        if self._grammars is None:
            error = RequestError("this engine cannot hold an output to a grammar", param="grammar")
            box.route.carry([(box, error)])
            return
        ids = {request.id for request in requests}
        with self._wake:
            self._preparing |= ids

        def ready(outcome: CompiledGrammar | KokubanError) -> None:
            if isinstance(outcome, KokubanError):
                with self._wake:
                    self._preparing -= ids
                box.route.carry([(box, outcome)])
            else:
                self._put_in(Submission(requests, box, outcome))

        self._grammars.prepare(source, ready)

    def suspend(self, request_ids: Collection[RequestId], begins: bool) -> None:
        """Compute no more of these requests for now, or go on with them; see `EngineCore`."""
        self._put_in(Suspension(request_ids, begins))

    def close(self) -> None:
        """Stop after the step that runs now; what is unfinished gets an error event."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join()
        if self._grammars is not None:
            self._grammars.close()

    def _check_running(self) -> None:
        if self._stopping:
            raise ShuttingDown("the engine is shutting down; try another server")
        if not self.alive():
            raise StepFailed("the engine has stopped after an internal error; see the server's log")

    def _put_in(self, what: Letter) -> None:
        with self._wake:
            ended = self._ended
            if not ended:
                self._inbox.append(what)
                self._wake.notify()
        if ended:
            self._refuse(what)

    def _ring(self) -> None:
        """Called on the disk's thread: it has done something that somebody may wait for."""
        with self._wake:
            self._rung = True
            self._wake.notify()

    # Below: the engine thread only.

    def _run(self) -> None:
        core = self._core
        try:
            while self._wait_for_work(core):
                while self._inbox:
                    self._take(core, self._inbox.popleft())
                events = core.step()
                self._stats = core.stats()  # first: who has seen the end finds the blocks free
                self._boxes.deliver(events)
                self._let_go(events)
                self._tell_watchers()
            self._end("the engine was shut down before this request ended")
        except Exception as error:
            self._failure = error
            logger.exception("the engine stopped after an internal error")
            self._end("the engine stopped after an internal error; see the server's log")
        finally:
            core.close()

    def _wait_for_work(self, core: EngineCore) -> bool:
        """Sleep while there is nothing to do. False when it is time to stop."""
        if not self._inbox and not self._stopping and core.idle:
            self._stats = core.stats()
            core.rest()
            with self._wake:
                while not self._inbox and not self._stopping and not self._rung:
                    # Who waits for the disk may have a deadline.
                    if not self._wake.wait(DEADLINE_S if core.has_requests else core.wait_s):
                        break
                self._rung = False
        return not self._stopping

    def _take(self, core: EngineCore, what: Letter) -> None:
        if isinstance(what, Call):
            if what.done.set_running_or_notify_cancel():
                try:
                    what.done.set_result(what.ask(core))
                except Exception as error:
                    logger.exception("a call to the engine failed")
                    what.done.set_exception(error)
            return
        if isinstance(what, Suspension):
            core.suspend(what.request_ids, begins=what.begins)
            return
        if not isinstance(what, Submission):
            core.cancel(what)
            self._boxes.forget(what)
            self._compiled.pop(what, None)
            return
        self._begin(core, what)

    def _begin(self, core: EngineCore, what: Submission) -> None:
        requests = what.requests if what.compiled is None else self._wanted(what.requests)
        if not requests:
            return
        try:
            core.add(requests)
        except KokubanError as error:
            self._boxes.refuse(what.box, error)
            return
        ids = [request.id for request in requests]
        if what.compiled is not None:
            self._compiled |= dict.fromkeys(ids, what.compiled)
        self._boxes.accept(ids, what.box)

    def _wanted(self, requests: Sequence[Request]) -> Sequence[Request]:
        """Those that were not cancelled before they came here: a cancellation may overtake them."""
        with self._wake:
            wanted = [request for request in requests if request.id in self._preparing]
            self._preparing.difference_update(request.id for request in wanted)
        return wanted

    def _let_go(self, events: Sequence[TokenEvent]) -> None:
        """Hold on no longer to the grammars of requests that have ended."""
        if self._compiled:
            for event in events:
                if event.finish is not None:
                    self._compiled.pop(event.request_id, None)

    def _refuse(self, what: Letter) -> None:
        error = StepFailed("the engine has stopped; see the server's log")
        if isinstance(what, Submission):
            self._boxes.refuse(what.box, error)
        elif isinstance(what, Call) and what.done.set_running_or_notify_cancel():
            what.done.set_exception(error)

    def _tell_watchers(self) -> None:
        """Wake whoever waits for KV events, if there are new ones, or none will come any more."""
        log, watchers = self._core.log, self._watchers
        if log is None or not watchers or (log.cursor == self._told and not self._ended):
            return
        self._told = log.cursor
        by_loop: dict[asyncio.AbstractEventLoop, list[Watcher]] = {}
        for watcher in watchers:
            by_loop.setdefault(watcher.loop, []).append(watcher)
        for loop, batch in by_loop.items():
            try:
                loop.call_soon_threadsafe(_wake_all, batch)
            except RuntimeError:  # the loop is closed: nobody waits there any more
                logger.debug("%d readers of KV events are gone with their event loop", len(batch))

    def _end(self, why: str) -> None:
        """Tell everybody who waits, and everybody who asks from now on, that it is over."""
        with self._wake:
            self._ended = True
        self._boxes.fail_all(why)
        while self._inbox:
            self._refuse(self._inbox.popleft())
        self._tell_watchers()


def _wake_all(watchers: Sequence[Watcher]) -> None:
    """On the event loop: there is something in the log."""
    for watcher in watchers:
        watcher.arrived.set()
