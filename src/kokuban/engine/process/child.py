"""What runs in the engine process, from its first line to its exit code.

It never outlives the server: the kernel kills it with its parent where it can, and the end of the
pipe that is its standard input ends it everywhere. Signals that a terminal or an init system sends
to a whole group are left to the server, which says when to stop.

Imports little at first, so that packing weights begins early: see `engine.loading`.
"""

import asyncio
import ctypes
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, BinaryIO

import zmq
import zmq.asyncio

from kokuban.core.env import debug, log_level
from kokuban.core.errors import KokubanError
from kokuban.engine.process import wire
from kokuban.engine.process.outbox import HEARTBEAT_S, Outbox
from kokuban.observe.logs import set_up_logging
from kokuban.observe.memory import settle_garbage, settle_heap

if TYPE_CHECKING:
    from kokuban.engine.process.service import Service
    from kokuban.engine.thread import EngineThread
    from kokuban.weights.progress import Progress

LAST_WORDS_S = 2.0
"""How long the end waits for the server to read."""

SWITCH_S = 2e-4
"""The interpreter's switch interval: how long the engine's thread may wait for it after a step."""

PR_SET_PDEATHSIG = 1

_log = logging.getLogger(__name__)

Build = Callable[[wire.Start, "Progress"], "EngineThread"]
"""Makes the engine that the process is for."""


def main(build: Build | None = None) -> None:
    """The whole life of an engine process. Does not return.

    Args:
        build: makes the engine; by default from the model's files.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    gc.disable()  # Until all is built: see `settle_garbage`.
    settle_heap()
    parent = os.getppid()
    _die_with(parent)
    start = _read_start(sys.stdin.buffer)
    threading.Thread(target=_end_with, args=(sys.stdin.buffer,), daemon=True).start()
    set_up_logging(log_level(), form=start.log_form, with_texts=debug())
    sys.setswitchinterval(SWITCH_S)
    code = asyncio.run(_run(start, build or build_from_files))
    sys.stderr.flush()
    os._exit(code)  # The thread that reads standard input cannot be ended.


def build_from_files(start: wire.Start, report: "Progress") -> "EngineThread":
    """Load the model that the server has found."""
    from kokuban.engine.loading import begin_loading

    def on_load(done_bytes: int, total_bytes: int) -> None:
        report("packing weights", done_bytes, total_bytes)

    with begin_loading(
        start.files, runtime=start.runtime, on_load=on_load, on_pull=report
    ) as loading:
        from kokuban.engine.build import build_engine
        from kokuban.engine.thread import EngineThread

        engine = build_engine(
            loading,
            scheduler=start.scheduler,
            runtime=start.runtime,
            served_name=start.name,
            serves=True,
        )
    assert isinstance(engine.client, EngineThread)
    return engine.client


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent is gone, if it is not already."""
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    except (OSError, AttributeError):
        return  # Not Linux: the pipe has to do.
    if os.getppid() != parent:
        os._exit(1)


def _end_with(pipe: BinaryIO) -> None:
    """Wait for the end of a pipe that only the server can write to: it is gone."""
    while pipe.read(1):
        pass
    os._exit(1)


def _read_start(pipe: BinaryIO) -> wire.Start:
    length = int.from_bytes(pipe.read(wire.LENGTH_BYTES), "big")
    data = pipe.read(length)
    if length == 0 or len(data) < length:
        os._exit(1)  # The server is gone.
    return wire.read_start(data)


async def _run(start: wire.Start, build: Build) -> int:
    """Connect, build, serve; returns the exit code."""
    with zmq.asyncio.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.ROUTING_ID, start.token.encode())
        socket.setsockopt(zmq.LINGER, int(LAST_WORDS_S * 1000))
        socket.set_hwm(wire.HIGH_WATER)
        socket.connect(start.endpoint)
        outbox = Outbox()
        sender = asyncio.create_task(outbox.drain_to(socket.send))
        try:
            return await _serve(start, build, socket, outbox)
        finally:
            await outbox.flush(LAST_WORDS_S)
            sender.cancel()


async def _serve(
    start: wire.Start, build: Build, socket: zmq.asyncio.Socket, outbox: Outbox
) -> int:
    outbox.put(wire.Hello(wire.PROTOCOL))
    try:
        engine = await _build(start, build, outbox)
    except Exception as error:  # noqa: BLE001 - the server is told
        if not isinstance(error, KokubanError):
            _log.exception("the engine cannot be built")
        outbox.put(wire.StartFailed(wire.Failure.of(error)))
        return 1
    settle_garbage()
    from kokuban.engine.process.service import Service

    service = Service(engine, outbox)
    outbox.put(wire.Ready(engine.info))
    reader = asyncio.create_task(_read(socket, service))
    try:
        in_order = await service.run()
    finally:
        if not outbox.empty:
            await outbox.flush(LAST_WORDS_S)
        closing = asyncio.create_task(asyncio.to_thread(engine.close))
        await _beat(outbox, closing)
        reader.cancel()
        service.close()
    return 0 if in_order else 1


async def _build(start: wire.Start, build: Build, outbox: Outbox) -> "EngineThread":
    """Build on a thread, so that the server hears all the time that something is being done."""
    told: dict[str, int] = {}

    def report(what: str, done_bytes: int, total_bytes: int) -> None:
        percent = 100 * done_bytes // max(1, total_bytes)
        if told.get(what) != percent:
            told[what] = percent
            outbox.put(wire.Progress(what, done_bytes, total_bytes))

    building = asyncio.create_task(asyncio.to_thread(build, start, report))
    await _beat(outbox, building)
    return building.result()


async def _beat(outbox: Outbox, work: "asyncio.Task[object]") -> None:
    """Wait for something while the server hears a heartbeat."""
    while not (await asyncio.wait({work}, timeout=HEARTBEAT_S))[0]:
        if outbox.empty:
            outbox.put(wire.Heartbeat(None))


async def _read(socket: zmq.asyncio.Socket, service: "Service") -> None:
    while True:
        service.take(await socket.recv())


if __name__ == "__main__":
    main()
