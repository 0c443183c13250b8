"""Runs responses that no connection waits for.

Such a run is counted by the drain as a connection is: at a shutdown it gets its time to end, and is
cut off after it. It is one of its tenant's requests at the same time, and has as long as any other.
Its events are kept only if the client asked for a stream.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import NamedTuple

from starlette.types import Message

from kokuban.core.errors import KokubanError, Overloaded, RequestError, ShuttingDown
from kokuban.engine.generation import TextDelta
from kokuban.server.answer import last_words
from kokuban.server.errors import failure
from kokuban.server.life import Connection, Drain, Interruption
from kokuban.server.quota import Place
from kokuban.server.record import Record
from kokuban.server.responses.event_log import EventLog
from kokuban.server.responses.form import ResponseForm
from kokuban.server.responses.store import Entry, ResponseStore

MAX_RUNS = 256
"""Of all tenants together; the engine's queue has its own limit."""

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False, kw_only=True)
class Run:
    """One response in the background."""

    form: ResponseForm
    record: Record
    entry: Entry
    connection: Connection
    place: Place
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    task: "asyncio.Task[None] | None" = None

    async def cancel(self) -> None:
        """End it, and wait until it has ended."""
        self.connection.interrupt(Interruption.CLIENT_GONE)
        await self.ended.wait()


class Background:
    """The runs of a server.

    Args:
        store: keeps the responses, from their beginning.
        drain: may cut them off.
    """

    def __init__(self, store: ResponseStore, drain: Drain) -> None:
        self._store = store
        self._drain = drain
        self._runs: dict[str, Run] = {}

    def find(self, entry: Entry) -> Run | None:
        """The run of a response; None once it has ended."""
        return self._runs.get(entry.id)

    def check(self) -> None:
        """Raises `Overloaded` or `ShuttingDown` when no run may begin now."""
        if self._drain.draining:
            raise ShuttingDown("this server is shutting down; try again or use another one")
        if len(self._runs) >= MAX_RUNS:
            raise Overloaded(
                f"{MAX_RUNS} responses run in the background, which is the limit; try again later "
                f"or without background",
                retry_after_s=5,
            )

    async def start(
        self,
        form: ResponseForm,
        deltas: AsyncGenerator[TextDelta],
        record: Record,
        tenant: str,
        *,
        place: Place,
        keeps_events: bool,
    ) -> Run:
        """Begin a response, which can be found from now on.

        Args:
            deltas: closed when it ends, however it ends.
            tenant: whose it is.
            place: that of the request which asks for it; held until it ends.
            keeps_events: whether they can be asked for.
        """
        entry = Entry(
            id=form.id,
            tenant=tenant,
            node=form.node(),
            status=form.status,
            body=form.as_json,
            is_background=True,
            is_running=True,
            log=EventLog() if keeps_events else None,
        )
        connection = Connection(_never, self._drain, record.time_left_s)
        run = Run(form=form, record=record, entry=entry, connection=connection, place=place.keep())
        self._runs[entry.id] = run
        self._store.put(entry)
        self._tell(run, form.first_frames())
        run.task = asyncio.create_task(self._run(run, deltas))
        await asyncio.sleep(0)  # From here on it can be interrupted.
        return run

    async def _run(self, run: Run, deltas: AsyncGenerator[TextDelta]) -> None:
        form, record = run.form, run.record
        last: list[bytes] | None = None
        try:
            async with (
                aclosing(deltas),
                aclosing(record.watch(deltas)) as watched,
                run.connection,
            ):
                async for delta in watched:
                    self._tell(run, form.frames(delta))
            record.end()
            last = form.finish()
        except asyncio.CancelledError:
            record.end("abort")
            if run.connection.interruption is None:
                raise  # The event loop ends.
            error = last_words(run.connection.interruption, record)
            last = form.cancel() if error is None else form.fail(failure(error))
        except Exception as fault:  # noqa: BLE001 - whoever asks is told of whatever went wrong
            record.end("refused" if isinstance(fault, RequestError | Overloaded) else "error")
            if not isinstance(fault, KokubanError):
                _log.error("request %s failed", record.request_id, exc_info=fault)
            last = form.fail(failure(fault))
        finally:
            self._end(run, last if last is not None else form.cancel())

    def _tell(self, run: Run, frames: list[bytes], *, last: bool = False) -> None:
        entry = run.entry
        entry.status = run.form.status
        if entry.log is None:
            return
        entry.log.add(frames, last=last)
        if not self._store.charge(entry, sum(map(len, frames))):
            entry.log.give_up()
            entry.log = None
            self._store.charge(entry, -entry.log_bytes)

    def _end(self, run: Run, last: list[bytes]) -> None:
        del self._runs[run.entry.id]
        self._tell(run, last, last=True)
        data = run.form.as_json()
        run.entry.body = lambda: data
        run.entry.is_running = False
        self._store.settle(run.entry, run.form.node())
        run.place.leave()
        run.ended.set()


class Kept(NamedTuple):
    """What a server remembers of this API. One for each application."""

    store: ResponseStore
    background: Background


async def _never() -> Message:
    """The client of a run never leaves."""
    await asyncio.Event().wait()
    raise AssertionError("unreachable")
