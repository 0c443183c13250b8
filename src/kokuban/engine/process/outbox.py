"""What an engine process has said and the server has not read yet."""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable

from kokuban.engine.process import wire

MAX_OUTBOX_BYTES = 32 * 2**20
"""What may wait for a server process that does not read. Then the engine waits for it, too."""

HEARTBEAT_S = 1.0
"""The longest time without a message."""

_log = logging.getLogger(__name__)


class Outbox:
    """Messages on their way out, in order. Filled by any thread, emptied on the event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._messages: deque[bytes] = deque()
        self._num_bytes = 0
        self._arrived = asyncio.Event()
        self._room = threading.Condition()
        self._closed = False

    @property
    def empty(self) -> bool:
        return not self._messages

    def put(self, message: wire.Message, *, waits: bool = False) -> None:
        """Send a message; encoded here, on the caller's thread.

        Args:
            waits: for room, so that what is made without end is not made faster than it is read.
                Never on the event loop.
        """
        data = wire.encode(message)
        with self._room:
            while waits and self._num_bytes > MAX_OUTBOX_BYTES and not self._closed:
                self._room.wait()
            if self._closed:
                return
            was_empty = not self._messages
            self._messages.append(data)
            self._num_bytes += len(data)
        if was_empty:
            self._loop.call_soon_threadsafe(self._arrived.set)

    async def drain_to(self, send: Callable[[bytes], Awaitable[object]]) -> None:
        """Send what comes, one after the other, without end."""
        while True:
            while self._messages:
                data = self._messages[0]
                await send(data)
                with self._room:
                    self._messages.popleft()
                    self._num_bytes -= len(data)
                    self._room.notify_all()
            self._arrived.clear()
            if not self._messages:
                await self._arrived.wait()

    async def flush(self, timeout_s: float) -> None:
        """Wait until all is sent, as long as somebody reads."""
        try:
            async with asyncio.timeout(timeout_s):
                while self._messages:
                    await asyncio.sleep(0.001)
        except TimeoutError:
            _log.warning("the server took %d messages no more", len(self._messages))

    def close(self) -> None:
        """Let go who waits for room; what comes from now on is dropped."""
        with self._room:
            self._closed = True
            self._room.notify_all()
