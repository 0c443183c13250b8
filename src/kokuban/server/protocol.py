"""What uvicorn's HTTP/1.1 leaves to others: clients that send slowly, or do not read.

Three clocks for each connection. *Head*: from the first moment, or from the end of the request
before, until the head of a request is complete; single bytes do not wind it up again. *Writes*:
while the client lets our buffer be full it must take some bytes now and then. *End*: a connection
that we have closed and that still has bytes to send is cut off. uvicorn's own clock, for idle
connections that are kept alive, stops at the first byte.
"""

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from kokuban.server.errors import HttpError, failure
from kokuban.server.settings import ServerSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from uvicorn.config import Config
    from uvicorn.server import ServerState

LOWEST_RATE = 256
"""Bytes a second that a client with a full buffer must take, on average."""

_log = logging.getLogger(__name__)


class Clocks:
    """The settings that connections need, and what is counted of them. One for each server."""

    def __init__(self, settings: ServerSettings, count: "Callable[[str], None]") -> None:
        self.settings = settings
        self.count = count
        """Called with the reason when a connection is cut off or refused."""


class HttpProtocol(H11Protocol):
    """One connection of a client.

    Args:
        clocks: see there; the other arguments are uvicorn's.
    """

    def __init__(
        self,
        config: "Config",
        server_state: "ServerState",
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        clocks: Clocks,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._clocks = clocks
        self._settings = clocks.settings
        self._head: asyncio.TimerHandle | None = None
        self._writes: asyncio.TimerHandle | None = None
        self._unsent = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._settings.max_connections:
            self._refuse("too_many_connections", self._settings.max_connections)
        else:
            self._wind_head()

    def connection_lost(self, exc: Exception | None) -> None:
        for clock in (self._head, self._writes):
            if clock is not None:
                clock.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        self._wind_head()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._later(self._settings.slow_client_s, self.transport.abort)
        elif self.conn.trailing_data[0] or self.conn.their_state is h11.SEND_BODY:
            self._wind_head()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._later(self._settings.slow_client_s, self.transport.abort)

    def pause_writing(self) -> None:
        """The buffer is full: whoever answers waits."""
        super().pause_writing()
        self._unsent = self.transport.get_write_buffer_size()
        self._writes = self._later(self._settings.slow_client_s, self._writes_are_late)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._writes is not None:
            self._writes.cancel()
            self._writes = None

    def send_400_response(self, msg: str) -> None:
        """In our envelope. uvicorn calls it for what is no HTTP."""
        self._answer(400, "the request is no HTTP/1.1 that this server reads", "invalid_http")

    def _unsupported_upgrade_warning(self) -> None:
        """No line in the log for each client that tries WebSockets: what it gets is plain HTTP."""

    def _later(self, seconds: float, what: "Callable[[], None]") -> asyncio.TimerHandle:
        return self.loop.call_later(seconds, what)

    def _wind_head(self) -> None:
        """Start the clock of the next head, unless it runs; stop it while a request is read.

        A body that goes on after its answer stands in the way of the next head, and counts as such.
        """
        theirs = self.conn.their_state
        is_between = theirs is h11.IDLE or (
            theirs is h11.SEND_BODY and self.conn.our_state is h11.DONE
        )
        if not is_between:
            self._stop_head()
        elif self._head is None and not self.transport.is_closing():
            self._head = self._later(self._settings.header_timeout_s, self._head_is_late)

    def _stop_head(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _head_is_late(self) -> None:
        self._head = None
        if self.transport.is_closing():
            return
        self._clocks.count("slow_head")
        if self.conn.trailing_data[0]:
            limit = self._settings.header_timeout_s
            self._answer(
                408,
                f"the head of the request did not arrive within {limit:g} seconds",
                "request_timeout",
            )
        else:
            self._close()

    def _writes_are_late(self) -> None:
        """Cut the client off, unless it has read on, however slowly."""
        unsent = self.transport.get_write_buffer_size()
        taken = self._unsent - unsent
        seconds = self._settings.slow_client_s
        if taken < LOWEST_RATE * seconds:
            self._clocks.count("slow_reader")
            _log.warning("cut off a client that has read %d bytes in %g s", max(0, taken), seconds)
            self.transport.abort()
            return
        self._unsent = unsent
        self._writes = self._later(seconds, self._writes_are_late)

    def _refuse(self, reason: str, limit: int) -> None:
        self._clocks.count(reason)
        self._answer(503, f"there are {limit} connections already; try again later", reason)

    def _answer(self, status: int, message: str, code: str) -> None:
        """An answer of our own to what never became a request; the connection ends with it."""
        self._stop_head()
        self._let_go()
        body = failure(HttpError(status, message, code=code)).encode()
        headers = [
            ("content-type", "application/json"),
            ("content-length", str(len(body))),
            ("connection", "close"),
            ("retry-after", "1"),
        ][: 4 if status == 503 else 3]
        events = (h11.Response(status_code=status, headers=headers), h11.Data(body))
        try:
            for event in (*events, h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        except h11.LocalProtocolError:
            pass  # In mid-answer: what was sent so far cannot be taken back.
        self._close()

    def _let_go(self) -> None:
        """Whoever still answers a request of this connection finds its client gone."""
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()

    def _close(self) -> None:
        self.transport.close()
        self._later(self._settings.slow_client_s, self.transport.abort)
