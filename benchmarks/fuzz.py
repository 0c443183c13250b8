"""Does any request, however wrong, disturb the server: an answer 500, a dead engine, a lost block?

Run:    python -m benchmarks.fuzz [--cases 200000] [--seed 0] [--streams 8] [--case SEED]
Reads:  cases by kind and status, cases a second, memory after each tenth of them. Exit code 1
        and the case's seed where an answer was 5xx, had no envelope, came too late, or a stream
        beside it said something else than alone. `--case` runs one case and shows it.

The server is the real one around the real engine with a scripted model, called in process: what is
tried is all that lies behind the HTTP parser. While the cases run, long streams run beside them.
At the end the engine must be idle, every block free, and its own checks content.
"""

import argparse
import asyncio
import json
import random
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from tests.parameter_values import JUNK, bad, good
from tools.bugbank_models import write_chain

from kokuban.core.config import RuntimeConfig, SchedulerConfig
from kokuban.engine.build import Engine, build_engine
from kokuban.engine.core import EngineCore
from kokuban.server.app import create_app
from kokuban.server.parameter import Api, Parameter
from kokuban.server.parameters import TABLE
from kokuban.server.settings import ServerSettings

CASE_TIMEOUT_S = 300.0
"""Long, since a busy machine is no fault of the server."""

CONCURRENCY = 48
LETTERS = range(ord("a"), ord("z") + 1)
SCRIPT = {
    token: LETTERS[(token - 96) % 26] if token in LETTERS else ord("a") for token in range(512)
}
"""Everything is followed by the alphabet, for ever."""

BASES: Mapping[str, str] = {
    "/v1/chat/completions": '"model":"m","messages":[{"role":"user","content":"p"}]',
    "/v1/completions": '"model":"m","prompt":"p"',
    "/v1/responses": '"model":"m","input":"p"',
    "/v1/messages": '"model":"m","max_tokens":3,"messages":[{"role":"user","content":"p"}]',
    "/v1/messages/count_tokens": '"model":"m","messages":[{"role":"user","content":"p"}]',
    "/v1/embeddings": '"model":"m","input":"p"',
    "/tokenize": '"prompt":"p"',
    "/detokenize": '"tokens":[97]',
    "/v1/sessions/s/pause": '"expected_s":0.01',
}
"""Fields that make a good body of each route; routes that the server has not are left out."""

LIMITS: Mapping[str, str] = {
    "/v1/chat/completions": "max_tokens",
    "/v1/completions": "max_tokens",
    "/v1/responses": "max_output_tokens",
    "/v1/messages": "max_tokens",
}
"""How each route calls the length of an answer: most of them are kept short."""

PATHS = (
    "/", "/health", "/ready", "/metrics", "/stats", "/version", "/v1/models", "/v1/models/m",
    "/v1/models/nope", "/v1/explain/none", "/v1/sessions/s", "/v1/sessions/s/resume",
    "/reset_prefix_cache", "/props", "/slots", "/tokenizer_info", "/get_server_info",
    "/openapi.json", "/v1/responses/none", "/v1/chat/completions/", "//", "/v1/%00", "/v1/models/é",
)  # fmt: skip
METHODS = ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "BREW")
HEADERS = (
    ("content-type", ("text/plain", "application/json; charset=latin-1", "", "a/b+json")),
    ("host", ("evil.example", "", "localhost:1", "[::1]", "127.0.0.1:99999", "\x00")),
    ("x-request-id", ("a" * 200, "x\ny", "é", "r", "")),
    ("x-session-id", ("s", "s2", "", "x" * 300, "é")),
    ("authorization", ("Bearer x", "Basic", "", "Bearer")),
    ("accept", ("text/event-stream", "x" * 40_000)),
    ("content-length", ("-1", "x", "99999999999", "0")),
    ("transfer-encoding", ("chunked", "gzip")),
    ("origin", ("https://evil.example", "null")),
    ("expect", ("100-continue",)),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Case:
    """One request."""

    kind: str
    method: str
    path: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()
    leaves_after: int | None = None
    """Messages of the answer after which the client is gone."""


def make_case(seed: int, paths: list[str]) -> Case:
    """The case of a seed, always the same."""
    rng = random.Random(seed)
    path = rng.choices(paths, [6 if "completions" in each else 1 for each in paths])[0]
    body = _body(rng, path)
    kind = rng.choices(("fields", "bytes", "headers", "paths", "leaves"), (70, 10, 8, 6, 6))[0]
    if kind == "bytes":
        return Case(kind, "POST", path, _mutated(rng, body))
    if kind == "headers":
        chosen = rng.sample(HEADERS, rng.randint(1, 3))
        headers = tuple((name, rng.choice(values)) for name, values in chosen)
        return Case(kind, "POST", path, body, headers)
    if kind == "paths":
        return Case(kind, rng.choice(METHODS), rng.choice((*PATHS, path)), body)
    if kind == "leaves":
        return Case(kind, "POST", path, body, leaves_after=rng.randint(0, 5))
    return Case(kind, "POST", path, body)


def _body(rng: random.Random, path: str) -> bytes:
    fields = [BASES[path]]
    table = _table(path)
    chosen = rng.sample(table, min(len(table), rng.choice((0, 1, 1, 2, 3, 5))))
    num_odd = rng.choices((0, 1, 2), (60, 30, 10))[0]
    for index, parameter in enumerate(chosen):
        if index < num_odd:
            values = rng.choice((bad(parameter), JUNK)) if parameter.kind != "any" else JUNK
        else:
            values = ["null"] if parameter.kind == "any" else good(parameter)
        fields.append(f'"{parameter.name}":{rng.choice(values or JUNK)}')
    if rng.random() < 0.99 and (name := LIMITS.get(path)):
        fields.append(f'"{name}":{rng.randint(1, 3)}')  # The last one counts.
    if '"n":128' in fields and rng.random() < 0.95:
        fields.append(f'"n":{rng.randint(1, 3)}')
    if rng.random() < 0.1:
        fields.append(f'"{rng.choice(("foo", "a.b", "é", "temprature"))}":{rng.choice(JUNK)}')
    return ("{" + ",".join(fields) + "}").encode()


def _table(path: str) -> list[Parameter]:
    apis = Api.COMPLETIONS if path == "/v1/completions" else Api.CHAT
    return [parameter for parameter in TABLE if apis in parameter.apis]


def _mutated(rng: random.Random, body: bytes) -> bytes:
    data = bytearray(body)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) + 1)
        how = rng.randrange(5)
        if how == 0:
            data[at:] = b""
        elif how == 1:
            data[at:at] = bytes(rng.randrange(256) for _ in range(rng.randint(1, 4)))
        elif how == 2:
            data[at : at + 1] = bytes([rng.randrange(256)])
        elif how == 3:
            data[at:at] = rng.choice(
                (b"[" * 500, b'{"a":' * 300, b"\xef\xbb\xbf", b"\x00", b"\\ud83d")
            )
        else:
            data[at:at] = data[rng.randrange(len(data) + 1) :][:50]
    return bytes(data)


@dataclass(slots=True)
class Answer:
    """What came back."""

    status: int = 0
    headers: dict[bytes, bytes] = field(default_factory=dict)
    body: bytes = b""


class Client:
    """Sends cases to an application in process."""

    def __init__(self, app: Starlette) -> None:
        self._app = app

    async def send(self, case: Case) -> Answer:
        """The answer; empty where the client left before there was one."""
        answer = Answer()
        gone = asyncio.Event()
        sent = False
        num_messages = 0

        async def receive() -> dict[str, Any]:
            nonlocal sent
            if not sent:
                sent = True
                return {"type": "http.request", "body": case.body, "more_body": False}
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            nonlocal num_messages
            num_messages += 1
            if case.leaves_after is not None and num_messages > case.leaves_after:
                gone.set()
            if message["type"] == "http.response.start":
                answer.status = message["status"]
                answer.headers = dict(message["headers"])
            else:
                answer.body += message.get("body", b"")

        if case.leaves_after == 0:
            asyncio.get_running_loop().call_later(0.001, gone.set)
        async with asyncio.timeout(CASE_TIMEOUT_S):
            await self._app(_scope(case), receive, send)
        return answer


def _scope(case: Case) -> dict[str, Any]:
    fields = {"host": "localhost", "content-type": "application/json"} | dict(case.headers)
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": case.method,
        "scheme": "http",
        "path": case.path,
        "raw_path": case.path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(k.encode(), v.encode("utf-8")) for k, v in fields.items()],
        "client": ("127.0.0.1", 1),
        "server": ("localhost", 80),
    }


def problem(case: Case, answer: Answer) -> str | None:
    """What is wrong with an answer; None: nothing."""
    if case.leaves_after is not None:
        return f"status {answer.status}" if answer.status >= 500 else None
    if not 200 <= answer.status < 500:
        return f"status {answer.status}"
    kind = answer.headers.get(b"content-type", b"")
    if answer.status >= 400:
        return None if case.method == "HEAD" or _is_envelope(answer.body) else "no envelope"
    if kind.startswith(b"text/event-stream"):
        return _stream_problem(case, answer.body)
    if kind.startswith(b"application/json"):
        json.loads(answer.body)
    return None


def _is_envelope(body: bytes) -> bool:
    found = json.loads(body)
    return set(found["error"]) >= {"message", "type"}


def _stream_problem(case: Case, body: bytes) -> str | None:
    events = [event for event in body.split(b"\n\n") if event and not event.startswith(b":")]
    for event in events:
        data = [line[6:] for line in event.split(b"\n") if line.startswith(b"data: ")]
        if len(data) != 1:
            return f"an event without one line of data: {event[:100]!r}"
        if data[0] != b"[DONE]" and "error" in (found := json.loads(data[0])):
            return None if found["error"] is None else f"a failed stream: {found['error']}"
    if "completions" in case.path and (not events or events[-1] != b"data: [DONE]"):
        return "a stream without an end"
    return None


class Neighbours:
    """Streams that run beside the cases and must say the alphabet whatever happens."""

    def __init__(self, client: Client, num_streams: int) -> None:
        self._client = client
        self._stop = False
        self.num_finished = 0
        self.faults: list[str] = []
        self._tasks = [asyncio.create_task(self._run(index)) for index in range(num_streams)]

    async def _run(self, index: int) -> None:
        body = json.dumps(
            {"model": "m", "prompt": f"{index}" * 20 + "z", "max_tokens": 400 + index,
             "temperature": 0, "stream": True, "priority": -5}
        )  # fmt: skip
        case = Case("stream", "POST", "/v1/completions", body.encode())
        wanted = "".join(chr(LETTERS[i % 26]) for i in range(400 + index))
        while not self._stop:
            try:
                answer = await self._client.send(case)
            except Exception as error:  # noqa: BLE001 - told with the other faults
                self.faults.append(f"stream {index}: {error!r}")
                return
            text = "".join(
                json.loads(event[6:])["choices"][0]["text"]
                for event in answer.body.split(b"\n\n")
                if event.startswith(b"data: {")
            )
            if (answer.status, text) != (200, wanted):
                self.faults.append(f"stream {index}: {answer.status} {answer.body[-300:]!r}")
                return
            self.num_finished += 1

    async def end(self) -> None:
        self._stop = True
        await asyncio.gather(*self._tasks)


@dataclass(slots=True)
class Report:
    """What a run found."""

    statuses: Counter[tuple[str, int]] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    num_streams: int = 0
    seconds: float = 0.0
    rss_mib: list[float] = field(default_factory=list)
    """After each tenth of the cases."""


@contextmanager
def engine() -> Iterator[Engine]:
    """A real engine with a scripted model and a small pool."""
    with tempfile.TemporaryDirectory() as folder:
        path = write_chain(Path(folder), SCRIPT)
        built = build_engine(
            path,
            scheduler=SchedulerConfig(
                token_budget=128, max_running_requests=96, max_waiting_requests=200,
                max_context_tokens=512,
            ),
            runtime=RuntimeConfig(kv_memory_bytes=64 * 2**20, threads=1),
            served_name="m",
        )  # fmt: skip
        try:
            yield built
        finally:
            built.close()


async def fuzz(built: Engine, num_cases: int, seed: int, num_streams: int) -> Report:
    """Run the cases of `num_cases` seeds, beside so many streams, and check the engine."""
    app = create_app(built, ServerSettings(explain_requests=64))
    app.state.later.load()
    known = {route.path for route in app.routes if hasattr(route, "path")}
    paths = [path for path in BASES if path in known or "/sessions/" in path]
    client, report = Client(app), Report()
    neighbours = Neighbours(client, num_streams)
    seeds = iter(range(seed * 10**9, seed * 10**9 + num_cases))
    start_s = time.perf_counter()

    async def work() -> None:
        for case_seed in seeds:
            if (case_seed + 1) % max(1, num_cases // 10) == 0:
                report.rss_mib.append(rss_mib())
            case = make_case(case_seed, paths)
            try:
                answer = await client.send(case)
                fault = problem(case, answer)
                report.statuses[case.kind, answer.status] += 1
            except Exception as error:  # noqa: BLE001 - every fault is to be reported with its case
                fault = repr(error)
            if fault is not None:
                report.faults.append(f"case {case_seed}: {fault}")

    await asyncio.gather(*(work() for _ in range(CONCURRENCY)))
    report.seconds = time.perf_counter() - start_s
    await neighbours.end()
    report.num_streams = neighbours.num_finished
    report.faults += neighbours.faults
    report.faults += [text async for text in _engine_faults(built)]
    return report


async def _engine_faults(built: Engine) -> AsyncIterator[str]:
    """What is wrong with an engine that nobody asks anything."""
    client = built.client
    if not client.alive():
        yield "the engine is dead"
        return
    deadline_s = time.monotonic() + 20
    while (stats := client.stats()).running or stats.waiting:
        if time.monotonic() > deadline_s:
            yield f"requests are left: {stats.running} running, {stats.waiting} waiting"
            return
        await asyncio.sleep(0.01)
    if stats.free_blocks != stats.num_blocks:
        yield f"{stats.num_blocks - stats.free_blocks} blocks are lost"
    await client._ask(_check)


def _check(core: EngineCore) -> None:
    core._scheduler.check()


def rss_mib() -> float:
    """Resident memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def show(report: Report) -> None:
    """Print what a run found."""
    num_cases = sum(report.statuses.values())
    by_kind: dict[str, Counter[int]] = {}
    for (kind, status), count in report.statuses.items():
        by_kind.setdefault(kind, Counter())[status] += count
    for kind, statuses in sorted(by_kind.items()):
        print(f"{kind:8}", "  ".join(f"{code}: {n:,}" for code, n in sorted(statuses.items())))
    memory = ", ".join(f"{each:.0f}" for each in report.rss_mib)
    print(
        f"{num_cases:,} cases in {report.seconds:.0f} s: {num_cases / report.seconds:.0f}/s; "
        f"{report.num_streams} long streams"
    )
    print(f"memory after each tenth: {memory} MiB")
    for fault in report.faults[:20]:
        print("FAULT", fault)
    print(f"{len(report.faults)} faults")


async def show_case(built: Engine, case_seed: int) -> None:
    """Run one case and print it with its answer."""
    app = create_app(built, ServerSettings())
    app.state.later.load()
    known = {getattr(route, "path", "") for route in app.routes}
    paths = [path for path in BASES if path in known or "/sessions/" in path]
    case = make_case(case_seed, paths)
    print(case)
    print(await Client(app).send(case))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--case", type=int, help="run the case of this seed and show it")
    arguments = parser.parse_args()
    with engine() as built:
        if arguments.case is not None:
            asyncio.run(show_case(built, arguments.case))
            return
        report = asyncio.run(fuzz(built, arguments.cases, arguments.seed, arguments.streams))
    show(report)
    sys.exit(bool(report.faults))


if __name__ == "__main__":
    main()
