"""One engine process as its parent sees it: started, spoken to, ended.

The socket lies in a directory that only this user may enter, and is removed from it once the child
has connected. The child's name on it is a random token that it reads from its standard input;
whatever comes from anybody else is dropped.
"""

import asyncio
import contextlib
import logging
import secrets
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import zmq
import zmq.asyncio

import kokuban
from kokuban.core.errors import ConfigError
from kokuban.engine.process import wire

_BOOT = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); "
    "from kokuban.engine.process.child import main; main()"
)

COMMAND = (sys.executable, "-P", "-c", _BOOT, str(Path(kokuban.__file__).parents[1]))
"""Starts a child of the very code that runs here, whatever lies in the working directory."""

STDERR = 2

_log = logging.getLogger(__name__)


class ChildProcess:
    """Made by `start_child`. For one event loop."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        context: zmq.asyncio.Context,
        socket: zmq.asyncio.Socket,
        directory: Path,
        token: bytes,
    ) -> None:
        self._process = process
        self._context = context
        self._socket = socket
        self._directory = directory
        self._token = token
        self._warned = False

    @property
    def pid(self) -> int:
        return self._process.pid

    async def receive(self) -> bytes:
        """The next message of the child."""
        while True:
            sender, *parts = await self._socket.recv_multipart()
            if sender == self._token and len(parts) == 1:
                return parts[0]
            if not self._warned:
                self._warned = True
                _log.warning("somebody else speaks to the socket of the engine; it is ignored")

    async def send(self, message: bytes) -> None:
        """Hand a message over; it is lost if the child is gone."""
        with contextlib.suppress(zmq.ZMQError):
            await self._socket.send_multipart([self._token, message])

    def hide(self) -> None:
        """Remove the socket's name: nobody else will connect."""
        shutil.rmtree(self._directory, ignore_errors=True)

    async def wait(self) -> str:
        """Wait for its end; returns how it ended."""
        return _describe(await self._process.wait())

    def kill(self) -> None:
        """End it at once."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def close(self) -> None:
        """Kill what is left of it, and give everything back."""
        self.kill()
        await self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._socket.close(linger=0)
        self._context.term()
        self.hide()


async def start_child(
    make_start: Callable[[str, str], wire.Start], command: Sequence[str] = COMMAND
) -> ChildProcess:
    """Start an engine process.

    Args:
        make_start: what it is told, from the address and the token that it shall use.
        command: what runs; reads what it is told from its standard input.

    Raises:
        ConfigError: there can be no socket, or no process.
    """
    directory = Path(tempfile.mkdtemp(prefix="kokuban-"))
    endpoint = f"ipc://{directory / 'engine'}"
    token = secrets.token_hex(16)
    context = zmq.asyncio.Context()
    socket = context.socket(zmq.ROUTER)
    try:
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.set_hwm(wire.HIGH_WATER)
        socket.setsockopt(zmq.SNDHWM, 0)  # What may wait here is bounded by the client.
        socket.bind(endpoint)
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.PIPE, stdout=STDERR
        )
    except (OSError, zmq.ZMQError) as error:
        socket.close(linger=0)
        context.term()
        shutil.rmtree(directory, ignore_errors=True)
        raise ConfigError(
            f"--engine process: no engine process can be started at {endpoint}: {error}; "
            f"see TMPDIR, or use --engine thread"
        ) from error
    child = ChildProcess(process, context, socket, directory, token.encode())
    data = wire.encode(make_start(endpoint, token))
    assert process.stdin is not None
    process.stdin.write(len(data).to_bytes(wire.LENGTH_BYTES, "big") + data)
    return child


def _describe(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    name = signal.Signals(-code).name
    hint = ", as the system does when memory runs out" if -code == signal.SIGKILL else ""
    return f"was killed by {name}{hint}"
