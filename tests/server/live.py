"""A real server on a real socket around a fake engine: in a thread, or as a process of its own."""

import asyncio
import socket
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from tests.fakes_text import EOT, FIRST_PIECE
from tests.server.fakes import FakeEngine, Served, served

from kokuban.server.app import create_app
from kokuban.server.listen import bind, url_of
from kokuban.server.run import Server, run_server
from kokuban.server.settings import ServerSettings

A, B, C = range(FIRST_PIECE, FIRST_PIECE + 3)
PIECES = ("Hello", " world", "!!")
CHAIN: Mapping[int, int | Sequence[int]] = {10: A, ord("p"): A, A: B, B: [C, EOT], C: EOT}


@contextmanager
def live(model: Served, **settings: object) -> Iterator[str]:
    """The address of a server that runs until the block ends."""
    chosen = ServerSettings(port=0, **settings)  # type: ignore[arg-type]
    sock = bind(chosen)
    started = threading.Event()
    servers: list[Server] = []

    def work() -> None:
        app = create_app(model, chosen)
        server = Server(app, started.set)
        servers.append(server)
        server.run(sockets=[sock])

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert started.wait(10)
        yield url_of(sock, chosen)
    finally:
        servers[0].should_exit = True
        thread.join(10)
        assert not thread.is_alive()


class SlowEngine(FakeEngine):
    """Takes a moment for every token, so that signals meet running requests."""

    async def _pace(self) -> None:
        await asyncio.sleep(0.02)


def main() -> None:
    """`python -m tests.server.live DRAIN_S`: prints the port, serves, exits as the server says."""
    settings = ServerSettings(port=0, drain_s=float(sys.argv[1]), commit_after_s=0)
    sock: socket.socket = bind(settings)
    model = served(pieces=PIECES, engine=SlowEngine({}))
    sys.exit(run_server(model, settings, sock, lambda: print(url_of(sock), flush=True)))


if __name__ == "__main__":
    main()
