"""Clients on real sockets that send slowly, do not read, or are too many: only they pay for it."""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx
import pytest
from tests.fakes_text import FIRST_PIECE
from tests.server.fakes import FakeEngine, served
from tests.server.live import live

A = FIRST_PIECE
HOST = b"Host: localhost\r\n"
WORD = "x" * 1000


def address_of(url: str) -> tuple[str, int]:
    host, port = url.removeprefix("http://").rsplit(":", 1)
    return host, int(port)


@contextmanager
def connection(url: str, receive_buffer: int | None = None) -> Iterator[socket.socket]:
    with socket.socket() as sock:
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.settimeout(10)
        sock.connect(address_of(url))
        yield sock


def read_all(sock: socket.socket) -> bytes:
    """All that comes until the server closes the connection."""
    data = b""
    try:
        while piece := sock.recv(65536):
            data += piece
    except ConnectionError:
        pass
    return data


def post(body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    return (
        b"POST /v1/completions HTTP/1.1\r\n" + HOST + b"Content-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n" % len(data) + data
    )


def cut(url: str, reason: str) -> int:
    text = httpx.get(f"{url}/metrics").text
    line = next(each for each in text.splitlines() if f'reason="{reason}"' in each)
    return int(float(line.rpartition(" ")[2]))


@pytest.mark.parametrize(
    ("beginning", "answer"),
    [
        (b"", b""),
        (b"GET /health HTTP/1.1\r\n", b"408"),
        (b"GET /health HTTP/1.1\r\n" + HOST + b"X-Slow: ", b"408"),
        (b"GET /health HTTP/1.1\r\n" + HOST + b"\r\nG", b"408"),  # The second one is slow.
        (b"GET /health HTTP/1.1\r\n" + HOST + b"Content-Length: 9\r\n\r\nb", b""),  # Its body is.
    ],
)
def test_a_head_that_does_not_end_ends_the_connection(beginning: bytes, answer: bytes) -> None:
    """Slowloris: bytes that trickle in do not wind the clock up again."""
    with live(served(), header_timeout_s=0.3) as url, connection(url) as sock:
        begun = time.monotonic()
        sock.sendall(beginning)
        sock.settimeout(0.05)
        data, closed = b"", False
        while not closed and time.monotonic() - begun < 5:
            try:
                piece = sock.recv(65536)
                data, closed = data + piece, not piece
            except TimeoutError:
                if beginning:
                    sock.sendall(b"a")
            except ConnectionError:
                closed = True
        taken = time.monotonic() - begun
        num_cut = cut(url, "slow_head")

    assert closed
    assert taken >= 0.25
    assert num_cut == 1
    last = data.rpartition(b"HTTP/1.1 ")[2]
    if answer:
        assert last.startswith(answer)
        assert json.loads(last.partition(b"\r\n\r\n")[2])["error"]["code"] == "request_timeout"


def test_a_connection_that_is_in_use_has_no_such_clock() -> None:
    model = served(engine=FakeEngine({ord("p"): A}))
    model.client.pause()
    with live(model, header_timeout_s=0.1) as url, connection(url) as sock:
        sock.sendall(post({"model": "m", "prompt": "p", "max_tokens": 2}))
        time.sleep(0.3)
        model.client.resume()
        data = b""
        while b'"usage"' not in data:
            data += sock.recv(65536)
        time.sleep(0.3)  # Idle and kept alive: uvicorn's own clock.
        sock.sendall(b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n")
        assert sock.recv(65536).startswith(b"HTTP/1.1 200")


def test_what_is_no_http_is_told_so_in_our_envelope() -> None:
    with live(served()) as url, connection(url) as sock:
        sock.sendall(b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n")
        head, _, body = read_all(sock).partition(b"\r\n\r\n")

    assert head.startswith(b"HTTP/1.1 400")
    assert json.loads(body)["error"]["code"] == "invalid_http"


def test_what_stops_being_http_ends_quietly(caplog: pytest.LogCaptureFixture) -> None:
    """Whoever answers meanwhile finds the client gone: no line of a program's fault in the log."""
    head = b"POST /nowhere HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"
    with live(served()) as url, connection(url) as sock:
        sock.sendall(head + b"-5\r\nhello\r\n")
        answer = read_all(sock)

    assert b'"invalid_http"' in answer
    assert [each.getMessage() for each in caplog.records if each.levelname == "ERROR"] == []


def test_one_connection_too_many_is_told_to_come_back() -> None:
    with live(served(), max_connections=2) as url:
        with connection(url) as first, connection(url) as second:
            for sock in (first, second):
                sock.sendall(b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n")
                assert sock.recv(65536).startswith(b"HTTP/1.1 200")
            with connection(url) as third:
                head, _, body = read_all(third).partition(b"\r\n\r\n")
        deadline = time.monotonic() + 5
        while (again := httpx.get(f"{url}/health")).status_code != 200:
            assert time.monotonic() < deadline

    assert head.startswith(b"HTTP/1.1 503")
    assert b"retry-after: 1" in head.lower()
    assert json.loads(body)["error"]["code"] == "too_many_connections"
    assert again.status_code == 200


def test_a_web_socket_is_never_opened() -> None:
    upgrade = (
        b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    with live(served()) as url:
        for path in (b"/", b"/v1/realtime", b"/v1/completions"):
            with connection(url) as sock:
                sock.sendall(b"GET " + path + b" HTTP/1.1\r\n" + HOST + upgrade)
                answer = sock.recv(65536)
            assert b" 101 " not in answer.partition(b"\r\n")[0]


def endless(**options: Any) -> dict[str, Any]:
    return {"model": "m", "prompt": "p", "max_tokens": 10**6, "stream": True, **options}


@asynccontextmanager
async def slow_reader(
    url: str, body: dict[str, Any], buffer: int = 4096
) -> AsyncIterator[socket.socket]:
    """Asks, and reads nothing of the answer."""
    with connection(url, buffer) as sock:
        sock.sendall(post(body))
        yield sock


async def test_a_client_that_does_not_read_pauses_alone_and_is_cut_off() -> None:
    """What it is not sent is not computed either; its request is freed; others notice nothing."""
    engine = FakeEngine({ord("p"): A, A: A}, max_context_tokens=10**7)
    with live(served(pieces=(WORD,), engine=engine), slow_client_s=0.5) as url:
        async with slow_reader(url, endless()) as sock, httpx.AsyncClient() as http:
            await until(lambda: engine.said > 100)
            body = {"model": "m", "prompt": "p", "max_tokens": 50}
            other = await http.post(f"{url}/v1/completions", json=body)
            await until(lambda: not engine.stats().running)
            said = engine.said
            assert read_all(sock)[:12] == b"HTTP/1.1 200"  # What lay in the system's buffers.
            assert cut(url, "slow_reader") == 1

    assert other.json()["usage"]["completion_tokens"] == 50
    assert said == engine.said
    assert said * len(WORD) < 16 * 2**20, "somebody's buffer has no bound"


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not is_so():
            await asyncio.sleep(0.01)


async def test_a_client_that_reads_slowly_but_reads_gets_it_all() -> None:
    """4 MB, which no buffer holds, in pieces with pauses."""
    engine = FakeEngine({ord("p"): A, A: A}, max_context_tokens=10**6)
    with live(served(pieces=(WORD,), engine=engine), slow_client_s=5) as url:
        async with slow_reader(url, endless(max_tokens=4000), 65536) as sock:
            data = b""
            while b"[DONE]" not in data[-20:]:
                await asyncio.sleep(0.001)
                piece = await asyncio.to_thread(sock.recv, 65536)
                assert piece, "it was cut off"
                data += piece
        num_cut = cut(url, "slow_reader")

    assert data.count(WORD.encode()) == 4000
    assert num_cut == 0


async def test_a_whole_answer_that_nobody_reads_does_not_stay_for_ever() -> None:
    engine = FakeEngine({ord("p"): A, A: A}, max_context_tokens=10**6, tokens_per_event=1000)
    with live(served(pieces=(WORD,), engine=engine), slow_client_s=0.3) as url:
        async with slow_reader(url, endless(max_tokens=20_000, stream=False)):
            async with asyncio.timeout(30):
                while not await asyncio.to_thread(cut, url, "slow_reader"):
                    await asyncio.sleep(0.05)
    assert engine.stats().running == 0
