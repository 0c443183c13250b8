"""Runs the application on a socket until a signal, and ends it in order.

SIGTERM or SIGINT: nothing new is taken (503), running requests get `drain_s` to end, what is left
is told so, and the process ends with 0. A second signal ends the wait. An engine that died ends the
process with 1, so that a supervisor starts it again.
"""

import asyncio
import logging
import socket
import sys
from collections.abc import Callable
from types import FrameType

import uvicorn

from kokuban.core.errors import ConfigError
from kokuban.server.app import create_app
from kokuban.server.embedding_models import EmbeddingRequest
from kokuban.server.messages.models import MessagesRequest
from kokuban.server.openai_models import ChatRequest, CompletionRequest
from kokuban.server.responses.request import ResponseRequest
from kokuban.server.serving import Serving
from kokuban.server.settings import ServedModel, ServerSettings

_KEEP_ALIVE_S = 30
_LAST_WORDS_S = 2

SWITCH_S = 2e-4
"""The interpreter's switch interval while a server runs: how long the engine's thread waits for the
interpreter at the end of a native step while the event loop writes. docs/decisions/0024."""

_log = logging.getLogger(__name__)


def warm_up() -> None:
    """Build the validators that the first requests would build; takes some 30 ms, once."""
    bodies = (ChatRequest, CompletionRequest, ResponseRequest, EmbeddingRequest, MessagesRequest)
    for body in bodies:
        body.model_rebuild()


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
    app = create_app(model, settings)
    server = Server(app.state.serving, app, on_ready)
    server.run(sockets=[sock])
    return server.exit_code


class Server(uvicorn.Server):
    """uvicorn, with our own way of ending."""

    def __init__(
        self, serving: Serving, app: object, on_ready: Callable[[], None] | None = None
    ) -> None:
        config = uvicorn.Config(
            app,  # type: ignore[arg-type]
            # Not "auto": httptools takes headers without a limit, and nobody needs web sockets.
            http="h11",
            ws="none",
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
        self._on_ready = on_ready
        self._ending: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        if self._on_ready is not None:
            self._on_ready()
        self._loop.call_soon(warm_up)

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
        return await super().on_tick(counter)
