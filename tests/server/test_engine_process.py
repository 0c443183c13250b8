"""`kokuban serve --engine process`, whole, with a tiny model: what clients see when engines die."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from tests.server.asgi import parse_events
from tests.server.child import ROOT, Child, serving
from tests.unit.engine.test_process import child_of, is_there
from tools.make_tiny_models import write_tiny_model

from kokuban.cli.options import EngineOptions, open_engine
from kokuban.core.env import for_child
from kokuban.core.errors import ConfigError

COMPLETIONS = "/v1/completions"
POOL = ("--kv-memory", str(1024 * 16 * 768))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"), "llama", form="gguf", dtype="q8_0")


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    """For all tests but the last, which ends it."""
    with serving(model, tmp_path_factory.mktemp("cache"), "--engine", "process", *POOL) as child:
        yield child


def stream_body(index: int) -> dict[str, object]:
    prompt = [index + 1, 5, 7]
    return {"model": "m", "prompt": prompt, "max_tokens": 500, "stream": True, "ignore_eos": True}


async def until_ready(http: httpx.AsyncClient) -> None:
    async with asyncio.timeout(30):
        while (await http.get("/ready")).status_code != 200:
            await asyncio.sleep(0.02)


async def stats_when_idle(http: httpx.AsyncClient) -> dict[str, int]:
    async with asyncio.timeout(10):
        while True:
            stats: dict[str, int] = (await http.get("/stats")).json()
            if stats["running"] == stats["waiting"] == 0:
                return stats
            await asyncio.sleep(0.02)


class Streams:
    """32 streams that are read in the background."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http
        self.data = [b""] * 32
        self._tasks = [asyncio.create_task(self._read(index)) for index in range(32)]

    async def _read(self, index: int) -> None:
        async with self._http.stream("POST", COMPLETIONS, json=stream_body(index)) as response:
            assert response.status_code == 200
            async for piece in response.aiter_bytes():
                self.data[index] += piece

    async def begun(self) -> None:
        async with asyncio.timeout(30):
            while not all(b"data:" in each for each in self.data):
                await asyncio.sleep(0.005)

    async def ended(self, within_s: float) -> None:
        async with asyncio.timeout(within_s):
            await asyncio.gather(*self._tasks)

    def check_errors(self, *says: str) -> None:
        """Every stream that had not ended got a last event that says what happened."""
        failed = [parse_events(each)[-1] for each in self.data if b'"error"' in each]
        assert all(b"[DONE]" in each for each in self.data)
        assert len(failed) >= 24, "most streams were to be under way"
        for event in failed:
            assert event["error"]["code"] == "engine_error"
            assert event["error"]["type"] == "server_error"
            assert all(text in event["error"]["message"] for text in says)


BREAKABLE = """
import sys
from pathlib import Path
from kokuban.core.config import RuntimeConfig, SchedulerConfig
from kokuban.engine.build import build_engine
from kokuban.server.listen import bind, url_of
from kokuban.server.run import run_server
from kokuban.server.settings import ServerSettings

engine = build_engine(
    sys.argv[1], scheduler=SchedulerConfig(), runtime=RuntimeConfig(threads=1), served_name="m"
)
executor = engine.client._core._executor
submit = executor.submit

def break_when_told(plan):
    if Path(sys.argv[2]).exists():
        raise RuntimeError("the kernel burnt")
    submit(plan)

executor.submit = break_when_told
settings = ServerSettings(port=0)
sock = bind(settings)
code = run_server(engine, settings, sock, lambda: print(url_of(sock), flush=True))
engine.close()
sys.exit(code)
"""


async def test_32_streams_of_an_engine_thread_that_dies_end_with_an_error_and_the_process_with_1(
    model: Path, tmp_path: Path
) -> None:
    """B88, B90: clients are told, the health check says no, the process does not stay."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", BREAKABLE, str(model), str(tmp_path / "break"),
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        env=for_child(PYTHONPATH=str(ROOT / "src"), KOKUBAN_CACHE=str(tmp_path)),
    )  # fmt: skip
    try:
        assert child.stdout is not None
        url = (await child.stdout.readline()).decode().strip()
        limits = httpx.Limits(max_connections=64)
        async with httpx.AsyncClient(base_url=url, limits=limits, timeout=60) as http:
            streams = Streams(http)
            await streams.begun()
            (tmp_path / "break").touch()
            await streams.ended(within_s=2)
        code = await asyncio.wait_for(child.wait(), 20)
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()

    streams.check_errors("the engine stopped after an internal error; see the server's log")
    assert code == 1


def test_a_process_gives_the_bits_that_a_thread_gives(
    server: Child, model: Path, tmp_path: Path
) -> None:
    prompts = [[index, 3, 250 - index] * (index + 1) for index in range(1, 12)]
    with serving(model, tmp_path / "thread", *POOL) as other:
        expected = [other.complete(prompt, 20).proof for prompt in prompts]
        sampled = other.complete(prompts[0], 20, temperature=0.9, seed=7, n=1).proof
        other.stop()

    assert [server.complete(prompt, 20).proof for prompt in prompts] == expected
    assert server.complete(prompts[0], 20, temperature=0.9, seed=7, n=1).proof == sampled


async def test_32_streams_of_a_killed_engine_end_with_an_error_within_2_s_and_the_server_stays(
    server: Child,
) -> None:
    """B88, B90: clients are told, the server is ready again by itself, no block is lost."""
    before = server.complete(range(40))
    engine = child_of(server.process.pid)
    limits = httpx.Limits(max_connections=64)
    async with httpx.AsyncClient(base_url=server.url, limits=limits, timeout=60) as http:
        streams = Streams(http)
        await streams.begun()
        os.kill(engine, signal.SIGKILL)
        await streams.ended(within_s=2)
        refused = await http.post(COMPLETIONS, json={"model": "m", "prompt": "a"})
        not_ready = await http.get("/ready")
        alive = await http.get("/health")

        await until_ready(http)
        stats = await stats_when_idle(http)
        metrics = (await http.get("/metrics")).text

    streams.check_errors("the engine process was killed by SIGKILL", "send the request again")
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) >= 1
    assert refused.json()["error"]["code"] == "engine_restarting"
    assert (not_ready.status_code, alive.status_code) == (503, 200)
    assert stats["free_blocks"] == stats["num_blocks"] == 1024
    assert stats["restarts"] == 1
    assert 'engine_restarts_total{model_name="m"} 1.0' in metrics
    assert server.complete(range(40)).proof == before.proof


def test_an_engine_that_cannot_start_says_why(model: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "kokuban", "serve", str(model), "--port", "0"]
    done = subprocess.run(
        [*command, "--engine", "process", "--kv-memory", "1KiB"],
        cwd=ROOT, capture_output=True, text=True, timeout=60,
        env=for_child(PYTHONPATH=str(ROOT / "src"), KOKUBAN_CACHE=str(tmp_path)),
    )  # fmt: skip

    assert done.returncode == 2, done.stderr
    [line] = [line for line in done.stderr.splitlines() if line.startswith("kokuban: ")]
    assert "1024" in line or "1KiB" in line
    assert "Traceback" not in done.stderr


def test_there_are_two_places_for_an_engine() -> None:
    with (
        pytest.raises(ConfigError, match="engine=fork is none of thread, process"),
        open_engine(EngineOptions(model="m", engine="fork")),
    ):
        pass


async def test_sigterm_lets_streams_end_and_the_engine_too(server: Child) -> None:
    engine = child_of(server.process.pid)
    data = b""
    async with (
        httpx.AsyncClient(base_url=server.url, timeout=60) as http,
        http.stream("POST", COMPLETIONS, json=stream_body(1)) as response,
    ):
        async for piece in response.aiter_bytes():
            if not data:
                for pid in (engine, server.process.pid):  # As an init system does.
                    os.kill(pid, signal.SIGTERM)
            data += piece
    code = await asyncio.to_thread(server.process.wait, 30)

    assert data.endswith(b"data: [DONE]\n\n")
    assert parse_events(data)[-1]["choices"][0]["finish_reason"] == "length"
    assert code == 0, server.log.read_text()
    assert not is_there(engine)
    assert server.said("Traceback") == 0
