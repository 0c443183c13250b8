"""Runs the application on a socket until a signal, and ends it in order.

SIGTERM or SIGINT: nothing new is taken (503), running requests get `drain_s` to end, what is left
is told so, and the process ends with 0. A second signal ends the wait. An engine that died ends the
process with 1, so that a supervisor starts it again.
"""

import asyncio
import logging
import os
import resource
import socket
import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn
from starlette.applications import Starlette

from kokuban.core.errors import ConfigError
from kokuban.server.app import Later, create_app
from kokuban.server.listen import load_certificates
from kokuban.server.protocol import Clocks, HttpProtocol
from kokuban.server.serving import Serving
from kokuban.server.settings import ServedModel, ServerSettings

if TYPE_CHECKING:
    import ssl

_KEEP_ALIVE_S = 30
_LAST_WORDS_S = 2
_OTHER_FILES = 256
_CERTIFICATE_TICKS = 100
"""Certificates are looked at every ten seconds."""

LOAD_AFTER_S = 0.1
"""Who waits for the server to be ready is told so before it imports its other routes."""

SWITCH_S = 2e-4
"""The interpreter's switch interval while a server runs: how long the engine's thread waits for the
interpreter at the end of a native step while the event loop writes. docs/decisions/0024."""

_log = logging.getLogger(__name__)


def run_server(
    model: ServedModel,
    settings: ServerSettings,
    sock: socket.socket,
    on_ready: Callable[[], None] | None = None,
) -> int:
    """Serve until a signal comes or the engine dies. Closes the socket, not the engine.

    Returns:
        The exit code of the process: 0, or 1 when the engine died.
    """
    if not __debug__:
        raise ConfigError("python -O takes the checks out of the engine; run without it")
    sys.setswitchinterval(SWITCH_S)
    _allow_connections(settings.max_connections)
    app = create_app(model, settings)
    server = Server(app, on_ready)
    server.run(sockets=[sock])
    if app.state.serving.tracer is not None:
        app.state.serving.tracer.close()
    return server.exit_code


def _allow_connections(number: int) -> None:
    """Raise the limit of open files to what so many connections need, as far as the system lets."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = number + _OTHER_FILES
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    if most < wanted:
        _log.warning(
            "the system lets this process open %d files, too few for %d connections; raise "
            "`ulimit -n`, or lower --max-connections",
            most,
            number,
        )


class Server(uvicorn.Server):
    """uvicorn, with our own way of ending."""

    def __init__(self, app: Starlette, on_ready: Callable[[], None] | None = None) -> None:
        serving: Serving = app.state.serving
        config = uvicorn.Config(
            app,
            # Not "auto": httptools takes headers without a limit, and nobody needs web sockets.
            http=partial(  # type: ignore[arg-type]
                HttpProtocol, clocks=Clocks(serving.settings, serving.metrics.cut)
            ),
            ws="none",
            ssl_certfile=serving.settings.ssl_certfile,
            ssl_keyfile=serving.settings.ssl_keyfile,
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=_LAST_WORDS_S,
        )
        super().__init__(config)
        self.exit_code = 0
        self._serving = serving
        self._later: Later = app.state.later
        self._on_ready = on_ready
        self._certificates = Certificates(serving.settings)
        self._ending: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        if self.config.ssl is not None:
            _limit_handshakes(self._loop, self._serving.settings.header_timeout_s)
        await super().startup(sockets)
        if self._on_ready is not None:
            self._on_ready()
        self._loop.call_later(LOAD_AFTER_S, self._load_faces)

    def _load_faces(self) -> None:
        if self._loop is not None and not self.should_exit:
            self._loop.run_in_executor(None, self._later.load)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal came. uvicorn's own handler would raise it again at the end: exit code 143."""
        if self._loop is None:
            self.should_exit = True
        else:
            self._loop.call_soon_threadsafe(self.end, self._serving.settings.drain_s)

    def end(self, drain_s: float) -> None:
        """Begin to end; a second call no longer waits for anything."""
        if self._ending is not None:
            drain_s = 0
        self._ending = asyncio.get_running_loop().create_task(self._end(drain_s))

    async def _end(self, drain_s: float) -> None:
        drain = self._serving.drain
        _log.info("ending: %d requests have %g s to finish", drain.in_flight, drain_s)
        if num_cut := await drain.finish(drain_s):
            _log.warning("cut off %d requests that did not finish in time", num_cut)
        self.should_exit = True

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second."""
        if self._ending is None and not self._serving.model.client.alive():
            _log.critical("the engine has stopped; this process ends so that it is started again")
            self.exit_code = 1
            self.end(_LAST_WORDS_S)
        if counter % _CERTIFICATE_TICKS == 0 and self.config.ssl is not None:
            self._certificates.refresh(self.config.ssl)
        return await super().on_tick(counter)


def _limit_handshakes(loop: asyncio.AbstractEventLoop, seconds: float) -> None:
    """Have servers that this loop makes give up on who does not finish the handshake of TLS.

    A connection is one for us only after it: until then no other clock of ours runs, and asyncio's
    own, which uvicorn cannot set, takes a minute.
    """
    create = partial(loop.create_server, ssl_handshake_timeout=seconds)
    loop.create_server = create  # type: ignore[method-assign]


class Certificates:
    """Notices when the files of TLS change, so that a certificate is renewed without a restart."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._seen = self._look()

    def refresh(self, context: "ssl.SSLContext") -> None:
        """Put changed files into the context of new connections, if they are good."""
        found = self._look()
        if found == self._seen:
            return
        self._seen = found
        try:
            load_certificates(type(context)(context.protocol), self._settings)
            load_certificates(context, self._settings)
        except ConfigError as error:
            _log.error("the certificates stay as they were: %s", error)
        else:
            _log.info("read the certificates anew")

    def _look(self) -> tuple[object, ...]:
        names = (self._settings.ssl_certfile, self._settings.ssl_keyfile)
        try:
            found = [os.stat(name) for name in names if name is not None]
        except OSError:  # It is being replaced.
            return ()
        return tuple((each.st_ino, each.st_size, each.st_mtime_ns) for each in found)
