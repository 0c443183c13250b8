"""A server process: signals, a socket that is taken, headers that are too long."""

import asyncio
import re
import signal
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from tests.server.asgi import Json, parse_events
from tests.server.fakes import served
from tests.server.live import live

from kokuban.core.errors import ConfigError
from kokuban.server.listen import bind
from kokuban.server.settings import ServerSettings

ROOT = Path(__file__).resolve().parents[2]
CHAT = "/v1/chat/completions"


def body(max_tokens: int) -> Json:
    messages = [{"role": "user", "content": "p"}]
    return {"model": "m", "messages": messages, "stream": True, "max_tokens": max_tokens}


@asynccontextmanager
async def process(drain_s: float) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.server.live", str(drain_s),
        cwd=ROOT, stdout=asyncio.subprocess.PIPE, env={"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"},
    )  # fmt: skip
    assert child.stdout is not None
    try:
        url = (await asyncio.wait_for(child.stdout.readline(), 30)).decode().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", url)
        yield child, url
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()


class Reader:
    """Reads a stream in the background; `begun` once a first token has come."""

    def __init__(self, http: httpx.AsyncClient, max_tokens: int) -> None:
        self.data = b""
        self.begun = asyncio.Event()
        self.task = asyncio.create_task(self._read(http, max_tokens))

    async def _read(self, http: httpx.AsyncClient, max_tokens: int) -> None:
        async with http.stream("POST", CHAT, json=body(max_tokens)) as response:
            async for piece in response.aiter_bytes():
                self.data += piece
                if b'"content":"\\n"' in self.data:
                    self.begun.set()


async def test_sigterm_lets_streams_end_refuses_new_ones_and_exits_with_0() -> None:
    """Keeps B91 out: docs/bugbank.md."""
    async with process(drain_s=20) as (child, url), httpx.AsyncClient(base_url=url) as http:
        readers = [Reader(http, 50) for _ in range(2)]
        for reader in readers:
            await reader.begun.wait()

        child.send_signal(signal.SIGTERM)
        while (await http.get("/ready")).status_code == 200:
            pass
        refused = await http.post(CHAT, json=body(1))
        for reader in readers:
            await reader.task
        code = await asyncio.wait_for(child.wait(), 10)

    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "shutting_down"
    assert code == 0
    for reader in readers:
        events = parse_events(reader.data)
        assert len(events) == 52
        assert events[-1]["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(("drain_s", "signals"), [(0, 1), (600, 2)])
async def test_streams_that_get_no_time_are_told_so(drain_s: float, signals: int) -> None:
    async with process(drain_s) as (child, url), httpx.AsyncClient(base_url=url) as http:
        reader = Reader(http, 4000)
        await reader.begun.wait()

        for _ in range(signals):
            child.send_signal(signal.SIGTERM)
            if signals > 1:
                while (await http.get("/ready")).status_code == 200:
                    pass
        await reader.task
        code = await asyncio.wait_for(child.wait(), 10)

    assert code == 0
    assert parse_events(reader.data)[-1]["error"]["code"] == "shutting_down"


async def test_a_process_whose_engine_died_exits_with_1() -> None:
    """Keeps B90 out: docs/bugbank.md."""
    script = (
        "import sys\n"
        "from tests.server.fakes import served\n"
        "from kokuban.server.listen import bind\n"
        "from kokuban.server.run import run_server\n"
        "from kokuban.server.settings import ServerSettings\n"
        "settings, model = ServerSettings(port=0), served()\n"
        "sys.exit(run_server(model, settings, bind(settings), model.client.die))\n"
    )
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, cwd=ROOT, env={"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
    )

    assert await asyncio.wait_for(child.wait(), 30) == 1


def test_an_address_that_is_taken_is_told_before_a_model_is_loaded() -> None:
    with bind(ServerSettings(port=0)) as first:
        first.listen()
        port = first.getsockname()[1]

        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1 port {port}"):
            bind(ServerSettings(port=port))


async def test_a_header_that_is_too_long_is_refused_and_the_server_lives() -> None:
    """Keeps B44 out: docs/bugbank.md."""
    with live(served()) as url:
        async with httpx.AsyncClient(base_url=url) as http:
            refused = await http.get("/health", headers={"x-request-id": "x" * 100_000})
            good = await http.get("/health")

    assert refused.status_code in (400, 431)
    assert good.status_code == 200


async def test_a_client_that_closes_its_socket_frees_its_request() -> None:
    """Keeps B41 out: docs/bugbank.md."""
    model = served()
    model.client.pause()  # Else the whole answer may be there before anybody looks.
    with live(model) as url:
        async with httpx.AsyncClient(base_url=url) as http:
            for stream in (False, True):
                request = asyncio.create_task(
                    http.post(CHAT, json={**body(4000), "stream": stream})
                )
                async with asyncio.timeout(30):
                    while model.client.stats().running == 0:
                        await asyncio.sleep(0.001)
                request.cancel()
                async with asyncio.timeout(30):
                    while model.client.stats().running:
                        await asyncio.sleep(0.001)


async def test_health_answers_while_a_long_prompt_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Keeps B89 out: docs/bugbank.md."""
    model = served()
    reading = threading.Event()
    encode = model.tokenizer.encode

    def watched(text: str, *, add_bos: bool, parse_special: bool) -> list[int]:
        reading.set()
        try:
            return encode(text, add_bos=add_bos, parse_special=parse_special)
        finally:
            reading.clear()

    monkeypatch.setattr(model.tokenizer, "encode", watched)
    with live(model) as url:
        async with httpx.AsyncClient(base_url=url, timeout=30) as http:
            long = asyncio.create_task(
                http.post("/v1/completions", json={"model": "m", "prompt": "ab " * 150_000})
            )
            num_answers = 0
            while not long.done():
                await http.get("/health")
                num_answers += reading.is_set()
            answer = await long

    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert num_answers >= 3  # One at most, if reading held the loop or the interpreter lock.
