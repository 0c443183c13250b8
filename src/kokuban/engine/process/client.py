"""The `EngineClient` of an engine in a process of its own.

One thread speaks with the engine, and keeps it running: see `Supervisor`. What is asked crosses to
that thread as a call of its event loop; what comes back goes to the loops of those who asked, once
for each step and loop, exactly as from an engine thread.
"""

import asyncio
import enum
import itertools
import logging
import math
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

from kokuban.core.config import RuntimeConfig, SchedulerConfig
from kokuban.core.errors import (
    EngineRestarting,
    KokubanError,
    RequestError,
    ShuttingDown,
    StepFailed,
)
from kokuban.core.request import Request, RequestId
from kokuban.core.session import SessionStatus
from kokuban.core.step import TokenEvent
from kokuban.engine.client import EngineInfo, EngineStats
from kokuban.engine.mailbox import Mailbox, events_of, open_mailbox
from kokuban.engine.process import wire
from kokuban.engine.process.pending import Group, Pending, Reader, fail
from kokuban.engine.process.spawn import COMMAND
from kokuban.engine.process.supervisor import Policy, Supervisor
from kokuban.kvcache.events import Cursor, Replay
from kokuban.observe.logs import form_in_use
from kokuban.weights.progress import Progress

_log = logging.getLogger(__name__)


DEFAULT_POLICY = Policy()


class _State(enum.Enum):
    STARTING = enum.auto()
    RUNNING = enum.auto()
    LOST = enum.auto()
    """The engine has died; there is to be another."""

    ENDED = enum.auto()


class ProcessClient:
    """Owns an engine process and the thread that speaks with it. Safe on any thread.

    Args:
        files: the model, found already.
        name: what the API calls it.
        scheduler, runtime: what the engine is to be.
        report: told how far the start is, on the client's own thread.
        policy: how long to wait, and how often to start again.
        command: what runs as the engine.
    """

    def __init__(
        self,
        files: Path,
        name: str,
        scheduler: SchedulerConfig,
        runtime: RuntimeConfig,
        *,
        report: Progress = lambda what, done_bytes, total_bytes: None,
        policy: Policy = DEFAULT_POLICY,
        command: Sequence[str] = COMMAND,
    ) -> None:
        def make_start(endpoint: str, token: str) -> wire.Start:
            return wire.Start(endpoint, token, files, name, scheduler, runtime, form_in_use())

        self._report = report
        self._most_unanswered = scheduler.max_waiting_requests + scheduler.max_running_requests
        self._supervisor = Supervisor(make_start, self, policy, command)
        self._loop = asyncio.new_event_loop()
        self._state = _State.STARTING
        self._stopping = False
        self._started: Future[None] = Future()
        self._retry_s = 1.0
        self._info: EngineInfo | None = None
        self._stats = EngineStats()
        self._restarts = 0
        self._numbers = itertools.count(1)
        self._pending = Pending(self._supervisor.send)
        self._ending = threading.Lock()
        """Held while something is handed to the loop, so that none is once it has ended."""

        self._thread = threading.Thread(target=self._run, name="kokuban-process", daemon=True)
        self._thread.start()

    def wait_ready(self) -> None:
        """Wait for the engine's start.

        Raises:
            ConfigError, ModelError: what the engine could not be built for.
            StepFailed: the process died.
        """
        self._started.result()

    @property
    def info(self) -> EngineInfo:
        assert self._info is not None, "asked before the engine was ready"
        return self._info

    def stats(self) -> EngineStats:
        return self._stats

    def ready(self) -> bool:
        return self._state is _State.RUNNING and not self._stopping

    def alive(self) -> bool:
        return self._state is not _State.ENDED

    def submit(self, requests: Sequence[Request]) -> AsyncIterator[TokenEvent]:
        """See `EngineClient.submit`."""

        def begin() -> Mailbox:
            if error := self._unavailable():
                raise error
            number = next(self._numbers)
            message = _encode(wire.Submit(number, tuple(requests)))
            group = Group(
                {request.id for request in requests}, open_mailbox(requests, self._suspend)
            )
            self._pending.reserve(len(group.request_ids), self._most_unanswered)

            def refuse(error: KokubanError) -> None:
                self._pending.release(len(group.request_ids))
                group.refuse(error)

            self._hand_over(partial(self._pending.submit, number, message, group), refuse)
            return group.box

        return events_of(begin, self.cancel)

    def cancel(self, request_id: RequestId) -> None:
        self._hand_over(partial(self._pending.cancel, request_id))

    def _suspend(self, request_ids: Collection[RequestId], begins: bool) -> None:
        self._hand_over(partial(self._pending.suspend, request_ids, begins))

    async def reset_prefix_cache(self) -> int:
        """See `EngineClient.reset_prefix_cache`."""
        return cast("int", await self._ask(wire.ResetPrefixCache()))

    async def pause_session(
        self, tenant: str, session: str, *, expected_s: float | None, tools: Sequence[str] = ()
    ) -> SessionStatus | None:
        """See `EngineClient.pause_session`."""
        ask = wire.PauseSession(tenant, session, expected_s, tuple(tools))
        return cast("SessionStatus | None", await self._ask(ask))

    async def resume_session(self, tenant: str, session: str) -> SessionStatus | None:
        """See `EngineClient.resume_session`."""
        return cast("SessionStatus | None", await self._ask(wire.ResumeSession(tenant, session)))

    async def delete_session(self, tenant: str, session: str) -> bool:
        """See `EngineClient.delete_session`."""
        return cast("bool", await self._ask(wire.DeleteSession(tenant, session)))

    async def session_status(self, tenant: str, session: str) -> SessionStatus | None:
        """See `EngineClient.session_status`."""
        return cast("SessionStatus | None", await self._ask(wire.GetSession(tenant, session)))

    async def kv_events(self, since: Cursor | None = None) -> AsyncGenerator[Replay]:
        """See `EngineClient.kv_events`."""
        if error := self._unavailable():
            raise error
        number = next(self._numbers)
        reader = Reader(asyncio.get_running_loop())
        self._hand_over(partial(self._pending.watch, number, since, reader), reader.put)
        try:
            async for replay in reader.replays():
                yield replay
                self._hand_over(partial(self._pending.read_on, number))
        finally:
            self._hand_over(partial(self._pending.unwatch, number))

    def close(self) -> None:
        """Stop after the step that runs now; what is unfinished gets an error event."""
        self._stopping = True
        with self._ending:
            if self._state is not _State.ENDED:
                self._loop.call_soon_threadsafe(self._supervisor.stop)
        self._thread.join()

    async def _ask(self, ask: wire.Ask) -> object:
        if error := self._unavailable():
            raise error
        done: Future[object] = Future()
        number = next(self._numbers)
        message = _encode(wire.Call(number, ask))
        self._hand_over(
            partial(self._pending.call, number, message, ask, done), partial(fail, done)
        )
        return await asyncio.wrap_future(done)

    def _unavailable(self) -> KokubanError | None:
        """Why nothing can be asked now."""
        if self._stopping:
            return ShuttingDown("the engine is shutting down; try another server")
        return None if self._state is _State.RUNNING else self._gone()

    def _gone(self) -> KokubanError:
        if self._state is _State.ENDED:
            return StepFailed("the engine has stopped after an error; see the server's log")
        return EngineRestarting(
            "the engine has died and is being started again; try again later",
            retry_after_s=max(1, math.ceil(self._retry_s)),
        )

    def _hand_over(
        self,
        begin: Callable[[], None],
        refuse: Callable[[KokubanError], None] = lambda error: None,
    ) -> None:
        """Ask the engine on the client's thread, or refuse, there or here."""
        with self._ending:
            if has_loop := self._state is not _State.ENDED:
                self._loop.call_soon_threadsafe(self._begin, begin, refuse)
        if not has_loop:
            refuse(self._gone())

    # Below: the client's own thread.

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._supervise())
        except Exception as error:  # noqa: BLE001 - whoever waits is told
            _log.exception("the thread that speaks with the engine failed")
            self._end(StepFailed(f"the thread that speaks with the engine failed: {error}"))

    async def _supervise(self) -> None:
        await self._supervisor.run()
        await asyncio.sleep(0)  # What was handed over before the end is refused now.

    @property
    def busy(self) -> bool:
        return self._pending.busy

    def on_progress(self, progress: wire.Progress) -> None:
        self._report(progress.what, progress.done_bytes, progress.total_bytes)

    def on_ready(self, info: EngineInfo) -> None:
        first = self._info is None
        self._restarts += not first
        self._info = info
        self._set_stats(EngineStats(num_blocks=info.num_blocks, free_blocks=info.num_blocks))
        self._state = _State.RUNNING
        if first:
            self._started.set_result(None)

    def on_message(self, message: wire.FromEngine) -> None:
        """What a running engine says."""
        if isinstance(message, wire.Step | wire.Heartbeat) and message.stats is not None:
            self._set_stats(message.stats)  # First: who has seen the end finds the blocks free.
        self._pending.take(message)

    def on_lost(self, why: str) -> None:
        """Everybody who waits is told at once."""
        self._state = _State.LOST
        self._fail_all(f"{why}; send the request again")

    def on_retry(self, after_s: float) -> None:
        self._retry_s = after_s

    def on_end(self, error: KokubanError) -> None:
        self._end(error)

    def _end(self, error: KokubanError) -> None:
        with self._ending:
            self._state = _State.ENDED
        self._fail_all(
            "the engine was shut down before this request ended" if self._stopping else str(error)
        )
        if not self._started.done():
            self._started.set_exception(error)

    def _fail_all(self, why: str) -> None:
        if self._info is not None:  # First, as above.
            blocks = self._info.num_blocks
            self._set_stats(replace(self._stats, running=0, waiting=0, free_blocks=blocks))
        self._pending.fail_all(why, self._gone)

    def _set_stats(self, stats: EngineStats) -> None:
        self._stats = replace(stats, restarts=self._restarts) if self._restarts else stats

    def _begin(self, begin: Callable[[], None], refuse: Callable[[KokubanError], None]) -> None:
        """Ask the engine, if there still is one."""
        if self._state is _State.RUNNING:
            begin()
        else:
            refuse(self._gone())


def _encode(message: wire.Message) -> bytes:
    """Raises `RequestError` for what cannot be written down."""
    try:
        return wire.encode(message)
    except (UnicodeEncodeError, OverflowError) as error:
        raise RequestError(f"the engine cannot be told of this request: {error}") from error
