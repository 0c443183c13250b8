"""Keeps an engine process running: starts it, notices its end, starts it again, or gives up."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from kokuban.core.errors import ConfigError, KokubanError, StepFailed
from kokuban.engine.client import EngineInfo
from kokuban.engine.process import wire
from kokuban.engine.process.spawn import COMMAND, ChildProcess, start_child
from kokuban.engine.process.watchdog import Watchdog

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How an engine process is kept."""

    max_failures: int = 5
    """Deaths and failed starts within the window, the last of which is the end of the server."""

    window_s: float = 600.0
    first_delay_s: float = 0.5
    """Before the second start in a row, doubled for each one after it; the first comes at once."""

    max_delay_s: float = 30.0
    stop_s: float = 60.0
    """Time to end in order, after a step, with KV that goes to disk."""

    watchdog: Callable[[], Watchdog] = Watchdog

    def delay_s(self, num_failures: int) -> float:
        """The pause after so many failures in the window."""
        if num_failures <= 1:
            return 0.0
        return min(self.max_delay_s, self.first_delay_s * 2.0 ** (num_failures - 2))


class Listener(Protocol):
    """Who is told what happens, on the supervisor's loop."""

    @property
    def busy(self) -> bool:
        """Whether anybody waits for the engine."""
        ...

    def on_progress(self, progress: wire.Progress) -> None: ...
    def on_ready(self, info: EngineInfo) -> None: ...
    def on_message(self, message: wire.FromEngine) -> None:
        """Anything that an engine says once it runs."""
        ...

    def on_lost(self, why: str) -> None:
        """The engine is gone, with all that it was asked."""
        ...

    def on_retry(self, after_s: float) -> None:
        """There is to be another, in so many seconds."""
        ...

    def on_end(self, error: KokubanError) -> None:
        """There will be no engine any more."""
        ...


class Supervisor:
    """Runs one engine process after the other, on one event loop.

    Args:
        make_start: what a child is told, from the address and the token that it shall use.
        listener: told what happens.
        policy: how long, and how often.
        command: what runs.
    """

    def __init__(
        self,
        make_start: Callable[[str, str], wire.Start],
        listener: Listener,
        policy: Policy,
        command: Sequence[str] = COMMAND,
    ) -> None:
        self._make_start = make_start
        self._listener = listener
        self._policy = policy
        self._command = command
        self._stopping = asyncio.Event()
        self._wanted = asyncio.Event()
        self._outgoing: deque[bytes] = deque()
        self._watchdog = policy.watchdog()
        self._was_ready = False
        self._is_ready = False
        self._begun_s = 0.0
        self._start_s = 1.0
        """How long the last start took."""

    def stop(self) -> None:
        """End the engine in order, and `run` with it."""
        self._stopping.set()

    def send(self, data: bytes) -> None:
        """Put an encoded message on its way to the engine that runs now."""
        self._outgoing.append(data)
        self._wanted.set()

    async def run(self) -> None:
        """Start engines until `stop`, or until it is of no use; tells the listener at the end."""
        failures: deque[float] = deque()
        while True:
            error = await self._live()
            if error is None:
                self._listener.on_end(StepFailed("the engine was shut down"))
                return
            if not self._was_ready:
                self._listener.on_end(error)
                return
            now_s = time.monotonic()
            failures.append(now_s)
            while failures[0] < now_s - self._policy.window_s:
                failures.popleft()
            if len(failures) >= self._policy.max_failures:
                window = f"{len(failures)} times in {now_s - failures[0]:.0f} s"
                _log.critical("the engine failed %s; giving up", window)
                self._listener.on_end(error)
                return
            delay_s = self._policy.delay_s(len(failures))
            self._listener.on_retry(delay_s + self._start_s)
            _log.warning("the engine process is started again in %.1f s", delay_s)
            await self._pause(delay_s)

    async def _pause(self, delay_s: float) -> None:
        try:
            async with asyncio.timeout(delay_s):
                await self._stopping.wait()
        except TimeoutError:
            return

    async def _live(self) -> KokubanError | None:
        """One life of an engine process; why it ended, None if it was told to."""
        if self._stopping.is_set():
            return None
        self._is_ready, self._begun_s = False, time.monotonic()
        self._watchdog = self._policy.watchdog()
        self._outgoing.clear()
        try:
            child = await start_child(self._make_start, self._command)
        except ConfigError as refusal:
            return refusal
        try:
            error = await self._listen(child)
            if error is not None:
                _log.error("%s", error)
            if error is not None and self._was_ready:
                self._listener.on_lost(str(error))
            return error
        finally:
            await child.close()

    async def _listen(self, child: ChildProcess) -> KokubanError | None:
        """Pass messages on until the child ends, breaks the protocol, hangs or is to stop."""
        reading = asyncio.create_task(self._read(child))
        sending = asyncio.create_task(self._send(child))
        exited = asyncio.create_task(child.wait())
        watching = asyncio.create_task(self._watch(child))
        stopping = asyncio.create_task(self._stopping.wait())
        tasks = (reading, sending, exited, watching, stopping)
        try:
            await asyncio.wait(
                {reading, exited, watching, stopping}, return_when=asyncio.FIRST_COMPLETED
            )
            if stopping.done():
                await self._stop(child, exited)
                return None
            if exited.done():  # It may have said something before, such as why.
                await asyncio.wait({reading}, timeout=0.05 if self._is_ready else 0.5)
            if reading.done():
                return reading.result()
            if watching.done():
                return watching.result()
            return StepFailed(f"the engine process {exited.result()}")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _stop(self, child: ChildProcess, exited: "asyncio.Task[str]") -> None:
        if self._is_ready:
            self.send(wire.encode(wire.Stop()))
            await asyncio.wait({exited}, timeout=self._policy.stop_s)
            if not exited.done():
                _log.error("the engine did not end within %g s; killed", self._policy.stop_s)

    async def _read(self, child: ChildProcess) -> KokubanError:
        """Take messages until one says, or shows, that there can be no more."""
        while True:
            data = await child.receive()
            try:
                message = wire.from_engine(data)
            except msgspec.MsgspecError as error:
                return StepFailed(f"the engine process said what nobody understands: {error}")
            stats = message.stats if isinstance(message, wire.Step | wire.Heartbeat) else None
            self._watchdog.hear(stats.steps if stats else None)
            if isinstance(message, wire.StartFailed):
                return message.failure.error()
            if isinstance(message, wire.Hello):
                child.hide()
                if message.protocol != wire.PROTOCOL:
                    return ConfigError(
                        f"the engine process speaks version {message.protocol} of the protocol, "
                        f"this server {wire.PROTOCOL}: the installation has changed since the "
                        f"start; start the server again"
                    )
            elif isinstance(message, wire.Progress):
                self._listener.on_progress(message)
            elif isinstance(message, wire.Ready):
                self._be_ready(child, message.info)
            else:
                self._listener.on_message(message)

    def _be_ready(self, child: ChildProcess, info: EngineInfo) -> None:
        self._start_s = time.monotonic() - self._begun_s
        if self._was_ready:
            _log.info("the engine is ready again, in process %d", child.pid)
        self._is_ready = self._was_ready = True
        self._listener.on_ready(info)

    async def _send(self, child: ChildProcess) -> None:
        while True:
            while self._outgoing:
                await child.send(self._outgoing.popleft())
            self._wanted.clear()
            await self._wanted.wait()

    async def _watch(self, child: ChildProcess) -> KokubanError:
        last_s = time.monotonic()
        while True:
            await asyncio.sleep(self._watchdog.tick_s)
            now_s = time.monotonic()
            if wrong := self._watchdog.tick(now_s - last_s, busy=self._listener.busy):
                return StepFailed(f"the engine process (pid {child.pid}) {wrong}; killed")
            last_s = now_s
