"""When the work on a request ends early: its client leaves, or the server shuts down.

Both end the task that answers, at whatever it waits for; the reason says what is told to whom.
Closing the generator of the answer cancels the request in the engine, waiting or running.
"""

import asyncio
import enum
from types import TracebackType
from typing import Self

from starlette.types import Receive

from kokuban.core.errors import ShuttingDown


class Interruption(enum.Enum):
    """Why a task was told to stop."""

    CLIENT_GONE = "the client closed the connection"
    CUT = "the server shuts down and its time to drain is over"
    LATE = "the request's time is over"


class Connection:
    """Watches over one request from its body's end to its answer's last byte.

    Used with `async with` by the task that answers, which gets a `CancelledError` when it is
    interrupted; `interruption` then tells why. `None` means a cancellation by somebody else.

    Args:
        timeout_s: time until it is interrupted; None: it has as long as it takes.
    """

    def __init__(self, receive: Receive, drain: "Drain", timeout_s: float | None = None) -> None:
        self._receive = receive
        self._drain = drain
        self._timeout_s = timeout_s
        self._alarm: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[object] | None = None
        self._watcher: asyncio.Task[None] | None = None
        self.interruption: Interruption | None = None

    async def __aenter__(self) -> Self:
        """Raises `ShuttingDown` when the server takes nothing new."""
        self._drain.enter(self)
        self._task = asyncio.current_task()
        self._watcher = asyncio.create_task(self._watch())
        if self._timeout_s is not None:
            loop = asyncio.get_running_loop()
            self._alarm = loop.call_later(self._timeout_s, self.interrupt, Interruption.LATE)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Interrupt no more. Call it before the last byte: after it the client seems to leave."""
        self._task = None
        if self._watcher is not None:
            self._watcher.cancel()
        if self._alarm is not None:
            self._alarm.cancel()
        self._drain.leave(self)

    def interrupt(self, reason: Interruption) -> None:
        """Cancel the task that answers, once."""
        if self._task is not None and self.interruption is None:
            self.interruption = reason
            self._task.cancel()

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.interrupt(Interruption.CLIENT_GONE)


class Drain:
    """Counts the requests that are being answered, and ends them in time.

    One for each server, on its event loop only.
    """

    def __init__(self) -> None:
        self._connections: set[Connection] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self.begun = asyncio.Event()
        """Set when nothing new is taken any more: what would never end by itself ends then."""

    @property
    def draining(self) -> bool:
        """Whether it has begun."""
        return self.begun.is_set()

    @property
    def in_flight(self) -> int:
        """Requests that are being answered."""
        return len(self._connections)

    def begin(self) -> None:
        """Take nothing new from now on; what runs goes on."""
        self.begun.set()

    def enter(self, connection: Connection) -> None:
        """Count a request.

        Raises:
            ShuttingDown: the server drains.
        """
        if self.draining:
            raise ShuttingDown("this server is shutting down; try again or use another one")
        self._connections.add(connection)
        self._idle.clear()

    def leave(self, connection: Connection) -> None:
        """The opposite of `enter`; a second call is ignored."""
        self._connections.discard(connection)
        if not self._connections:
            self._idle.set()

    async def finish(self, timeout_s: float, last_words_s: float = 1.0) -> int:
        """Wait for the running requests, then cut off those that are left.

        Args:
            timeout_s: time that they are given; 0 cuts at once.
            last_words_s: time for the error events of those that were cut.

        Returns:
            How many were cut off.
        """
        self.begin()
        if await self._wait_idle(timeout_s):
            return 0
        cut = list(self._connections)
        for connection in cut:
            connection.interrupt(Interruption.CUT)
        await self._wait_idle(last_words_s)
        return len(cut)

    async def _wait_idle(self, timeout_s: float) -> bool:
        if self._idle.is_set():
            return True
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True
