"""Runs a generation and sends what comes of it: as one body, or as server-sent events.

Both notice at once when the client leaves, also while the request waits in the engine's queue, and
both end in order when the server's time to drain is over. The form of the answer (chat or
completion) is not known here: see `Form`.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from functools import partial
from typing import Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from kokuban.core.errors import KokubanError, Overloaded, RequestError, ShuttingDown
from kokuban.core.parameters import GRAMMAR_LIMIT_S
from kokuban.engine.generation import TextDelta
from kokuban.server.errors import Failure, HttpError, failure
from kokuban.server.life import Connection, Drain, Interruption
from kokuban.server.record import Record
from kokuban.server.serving import Serving

_log = logging.getLogger(__name__)

COMMENT = b": still working\n\n"
"""Keeps a stream open; no client sees it."""


class WholeForm(Protocol):
    """How deltas become one body."""

    def add(self, delta: TextDelta) -> None:
        """Keep a delta for the whole body."""
        ...

    def body(self) -> bytes:
        """The whole body, after the last delta."""
        ...


class Form(WholeForm, Protocol):
    """How deltas become a body. Used for one answer, either whole or streamed."""

    def opening(self) -> bytes:
        """The events that come before all deltas."""
        ...

    def events(self, delta: TextDelta) -> bytes:
        """The events of a delta; none while its text is held back."""
        ...

    def closing(self) -> bytes:
        """The events after the last delta, with the mark that ends the stream."""
        ...

    def failed(self, failure: Failure) -> bytes:
        """The last events of a stream that fails after it has begun."""
        ...


class Answer(Response):
    """The whole answer in one body.

    Args:
        deltas: closed when the answer ends, however it ends.
        form: what the body looks like.
        record: gets its end here.
        drain: counts this answer, and may cut it off.
    """

    media_type = "application/json"

    def __init__(
        self, deltas: AsyncGenerator[TextDelta], form: WholeForm, record: Record, drain: Drain
    ) -> None:
        super().__init__(media_type=self.media_type)
        self._deltas = deltas
        self._form = form
        self._record = record
        self._drain = drain
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection = Connection(receive, self._drain, self._record.time_left_s)
        try:
            async with (
                aclosing(self._deltas),
                aclosing(self._record.watch(self._deltas)) as deltas,
                connection,
            ):
                await self._run(deltas, connection, scope, send)
            self._record.end()
        except asyncio.CancelledError:
            self._record.end("abort")
            if connection.interruption is None:
                raise
            _stay_alive()
            if error := last_words(connection.interruption, self._record):
                await self._fail(error, send)
        except Exception as error:  # noqa: BLE001 - the client is told of whatever went wrong
            refused = isinstance(error, RequestError | Overloaded) and not self._started
            self._record.end("refused" if refused else "error")
            await self._fail(error, send)

    async def _run(
        self,
        deltas: AsyncIterator[TextDelta],
        connection: Connection,
        scope: Scope,
        send: Send,
    ) -> None:
        async for delta in deltas:
            self._form.add(delta)
        connection.close()
        self._started = True
        body = self._form.body()
        await Response(body, media_type=self.media_type)(scope, _never, send)

    async def _fail(self, error: Exception, send: Send) -> None:
        """Before the headers an error is a response of its own: see `Guard`."""
        raise error


class EventStream(Answer):
    """The answer as server-sent events, one for each event of the engine.

    The headers wait a moment for the first delta, so that whatever goes wrong at once has an HTTP
    status; after that an error is an event in the form's own shape.

    Args:
        commit_after_s: how long the headers wait.
        ping_s: time without an event after which something is sent.
        keep_alive: what that is: a comment, or an event without news.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        deltas: AsyncGenerator[TextDelta],
        form: Form,
        record: Record,
        drain: Drain,
        *,
        commit_after_s: float,
        ping_s: float,
        keep_alive: bytes = COMMENT,
    ) -> None:
        super().__init__(deltas, form, record, drain)
        self._events = form
        self.headers["cache-control"] = "no-cache"
        self.headers["x-accel-buffering"] = "no"
        del self.headers["content-length"]
        self._commit_after_s = commit_after_s
        self._ping_s = ping_s
        self._keep_alive = keep_alive
        self._sending = asyncio.Lock()
        self._silent = True

    async def _run(
        self,
        deltas: AsyncIterator[TextDelta],
        connection: Connection,
        scope: Scope,
        send: Send,
    ) -> None:
        keeper = asyncio.create_task(self._keep_open(send))
        try:
            async for delta in deltas:
                await self._send(partial(self._events.events, delta), send)
        finally:
            keeper.cancel()
        connection.close()
        await self._send(self._events.closing, send, last=True)

    async def _send(self, make: Callable[[], bytes], send: Send, *, last: bool = False) -> None:
        """Send what is made now: the form is asked in the order of the stream, opening first."""
        async with self._sending:
            data = (b"" if self._started else self._events.opening()) + make()
            if not self._started:
                self._started = True
                await send(
                    {
                        "type": "http.response.start",
                        "status": 200,
                        "headers": self.raw_headers,
                    }
                )
            if data or last:
                self._silent = False
                await send({"type": "http.response.body", "body": data, "more_body": not last})

    async def _keep_open(self, send: Send) -> None:
        await asyncio.sleep(self._commit_after_s)
        await self._send(bytes, send)
        while True:
            self._silent = True
            await asyncio.sleep(self._ping_s)
            if self._silent:
                await self._send(lambda: self._keep_alive, send)

    async def _fail(self, error: Exception, send: Send) -> None:
        if not self._started:
            raise error
        if not isinstance(error, KokubanError):
            _log.error("request %s failed", self._record.request_id, exc_info=error)
        await self._send(partial(self._events.failed, failure(error)), send, last=True)


def respond(
    serving: Serving,
    deltas: AsyncGenerator[TextDelta],
    form: Form,
    record: Record,
    *,
    stream: bool,
    keep_alive: bytes = COMMENT,
) -> Response:
    """The response of a route that generates; nothing runs before it is sent."""
    if not stream:
        return Answer(deltas, form, record, serving.drain)
    # What cannot be compiled is to have a status, however long that takes to be known.
    compile_s = GRAMMAR_LIMIT_S if record.compiles else 0.0
    return EventStream(
        deltas,
        form,
        record,
        serving.drain,
        commit_after_s=serving.settings.commit_after_s + compile_s,
        ping_s=serving.settings.ping_s,
        keep_alive=keep_alive,
    )


def last_words(why: Interruption, record: Record) -> KokubanError | None:
    """What a client is told whose request was interrupted; None: it has left, or wanted it so."""
    if why is Interruption.CUT:
        return ShuttingDown(why.value)
    if why is Interruption.LATE:
        return HttpError(
            504,
            f"the answer was not complete within {record.timeout_s:g} s; allow more time by the "
            f"header X-Request-Timeout, up to the server's --request-timeout, or ask for less",
            code="timeout",
        )
    return None


def _stay_alive() -> None:
    """Take back the cancellation that interrupted this task: it has last words to say."""
    task = asyncio.current_task()
    if task is not None:
        task.uncancel()


async def _never() -> dict[str, str]:
    """A `receive` for a response that listens to nothing."""
    raise AssertionError("a plain response does not read")
