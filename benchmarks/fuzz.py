"""Does any request, however wrong, disturb the server: an answer 500, a dead engine, a lost block?

Run:    python -m benchmarks.fuzz [--cases 200000] [--seed 0] [--streams 8] [--case SEED]
Reads:  cases by kind and status, cases a second, the slowest, memory in each tenth of them.
        Exit code 1 and the case's seed where an answer was 5xx, had no envelope, never came, or a
        stream beside it said something else than alone. `--case` runs one case and shows it.

The server is the real one around the real engine with a scripted model: called in process, behind
the HTTP parser, or over a socket. What is sent: `fuzz_cases`. While the cases run, long streams run
beside them. At the end the engine must be idle, nothing may run in the background, every block must
be free, and the engine's own checks content; and memory must not have grown since the third tenth.
"""

import argparse
import asyncio
import gc
import json
import logging
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.fuzz_cases import BASES, KEYS, Ask, Case, make_case
from benchmarks.fuzz_client import Answer, Client, problem, send_raw
from starlette.applications import Starlette
from tools.bugbank_models import write_chain

from kokuban.core.config import RuntimeConfig, SchedulerConfig
from kokuban.engine.build import Engine, build_engine
from kokuban.engine.core import EngineCore
from kokuban.observe.memory import settle_heap
from kokuban.server.app import FIRST_MODULES, create_app
from kokuban.server.description import describe
from kokuban.server.faces import MODULES
from kokuban.server.listen import bind
from kokuban.server.run import Server
from kokuban.server.settings import ServerSettings

CONCURRENCY = 48
IDLE_S = 120.0
"""In which everything must have ended when nobody asks for anything any more."""

MAX_GROWTH_MIB = 16.0
"""Since the third tenth, when what is bounded (explanations, responses) is full."""

LEAST_GOOD = 0.05
"""Share of the answers of a route that must be good ones, or hardly more than its door is tried."""

LETTERS = range(ord("a"), ord("z") + 1)
SCRIPT = {
    token: LETTERS[(token - 96) % 26] if token in LETTERS else ord("a") for token in range(512)
}
"""Everything is followed by the alphabet, for ever."""

BOUNDS: Mapping[str, Any] = {"explain_requests": 64, "response_store_bytes": 2**20}
"""What is kept of past requests, small enough to be full soon."""

KV_EVENTS = 1024
"""Likewise, by the engine."""


class Neighbours:
    """Streams that run beside the cases and must say the alphabet whatever happens."""

    def __init__(self, client: Client, num_streams: int, num_tokens: int) -> None:
        self._client = client
        self._num_tokens = num_tokens
        self._stop = False
        self.num_finished = 0
        self.faults: list[str] = []
        self._tasks = [asyncio.create_task(self._run(index)) for index in range(num_streams)]

    async def _run(self, index: int) -> None:
        body = json.dumps(
            {"model": "m", "prompt": f"{index}" * 20 + "z", "max_tokens": self._num_tokens + index,
             "temperature": 0, "stream": True, "priority": -5}
        )  # fmt: skip
        ask = Ask("POST", "/v1/completions", body.encode(), reads_slowly=True)
        wanted = "".join(chr(LETTERS[i % 26]) for i in range(self._num_tokens + index))
        while not self._stop:
            try:
                answer = await self._client.send(ask)
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
    """Answers by kind of case and status; 0: the client had left, or a socket was closed."""

    paths: Counter[tuple[str, int]] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    slowest: list[tuple[float, str]] = field(default_factory=list)
    num_cases: int = 0
    num_streams: int = 0
    seconds: float = 0.0
    rss_mib: list[float] = field(default_factory=list)
    """After each hundredth; in the end the least of each tenth, since much is held for a while."""

    def fault(self, text: str) -> None:
        self.faults.append(text)
        print("FAULT", text, file=sys.stderr, flush=True)

    def took(self, seconds: float, what: str) -> None:
        self.slowest = sorted([*self.slowest, (seconds, what)], reverse=True)[:5]


class Alarm(logging.Handler):
    """Whatever is logged as an error is a fault, also where the client saw nothing of it."""

    def __init__(self, report: Report) -> None:
        super().__init__(logging.ERROR)
        self._report = report

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        self._report.fault(f"log {record.name}: {record.getMessage()[:300]} {error!r}")


@dataclass(frozen=True, slots=True)
class Target:
    """The applications around one engine, and a socket of one of them."""

    apps: Mapping[str, Starlette]
    port: int

    async def run(self, case: Case) -> list[tuple[Ask, Answer]]:
        if case.app == "wire":
            return [(case.asks[0], await send_raw(case.raw, self.port))]
        return await Client(self.apps[case.app]).run(case)


@asynccontextmanager
async def _watched(report: Report) -> AsyncIterator[None]:
    alarm = Alarm(report)
    logging.getLogger().addHandler(alarm)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(alarm)


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


@asynccontextmanager
async def target(built: Engine) -> AsyncIterator[Target]:
    """Three servers around one engine: without keys, with keys and limits, and on a socket."""
    keyed = ServerSettings(
        **BOUNDS, api_keys=KEYS[:1], admin_keys=KEYS[1:2], strict=True, max_concurrent=3,
        requests_per_minute=3000, tokens_per_minute=30_000, ping_s=0.5,
    )  # fmt: skip
    short = ServerSettings(**BOUNDS, port=0, header_timeout_s=0.3, body_timeout_s=0.3)
    apps = {
        "open": create_app(built, ServerSettings(**BOUNDS)),
        "keyed": create_app(built, keyed),
        "wire": create_app(built, short),
    }
    for app in apps.values():
        app.state.later.load()
    sock = bind(short)
    started = asyncio.Event()
    server = Server(apps["wire"], started.set)
    server.capture_signals = nullcontext  # type: ignore[method-assign]
    serving = asyncio.create_task(server.serve(sockets=[sock]))
    await started.wait()
    try:
        yield Target(apps, sock.getsockname()[1])
    finally:
        server.should_exit = True
        await serving


async def fuzz(
    built: Engine, num_cases: int, seed: int, num_streams: int, stream_tokens: int = 400
) -> Report:
    """Run the cases of `num_cases` seeds, beside so many streams, and check the engine."""
    report = Report()
    make = case_maker()
    await built.client._ask(_keep_few_events)
    async with _watched(report), target(built) as tried:
        neighbours = Neighbours(Client(tried.apps["open"]), num_streams, stream_tokens)
        seeds = iter(range(seed * 10**9, seed * 10**9 + num_cases))
        start_s = time.perf_counter()

        async def work() -> None:
            for case_seed in seeds:
                if (case_seed + 1) % max(1, num_cases // 100) == 0:
                    report.rss_mib.append(rss_mib())
                    print(case_seed + 1, f"{report.rss_mib[-1]:.0f} MiB", file=sys.stderr)
                await _try(tried, make(case_seed), case_seed, report)

        await asyncio.gather(*(work() for _ in range(CONCURRENCY)))
        report.seconds = time.perf_counter() - start_s
        await neighbours.end()
        report.num_streams = neighbours.num_finished
        for text in neighbours.faults:
            report.fault(text)
        async for text in _left_overs(built, tried):
            report.fault(text)
    for path in _hardly_tried(report.paths):
        report.fault(f"{path} has hardly answered: what is sent there tries its door only")
    report.rss_mib = [min(report.rss_mib[i : i + 10]) for i in range(0, len(report.rss_mib), 10)]
    if len(report.rss_mib) == 10 and num_cases >= 50_000:
        growth = report.rss_mib[-1] - report.rss_mib[2]
        if growth > MAX_GROWTH_MIB:
            report.fault(f"memory has grown by {growth:.0f} MiB since the third tenth")
    return report


async def _try(tried: Target, case: Case, case_seed: int, report: Report) -> None:
    """Run a case and put down what came of it."""
    begin_s = time.perf_counter()
    try:
        answers = await tried.run(case)
        faults = [problem(ask, answer) for ask, answer in answers if case.app != "wire"]
        for ask, answer in answers:
            report.statuses[case.kind, answer.status] += 1
            report.paths[_route(ask.path), answer.status] += 1
            if case.app == "wire" and answer.status >= 500:
                faults.append(f"status {answer.status} {answer.body[:300]!r}")
    except Exception as error:  # noqa: BLE001 - every fault is to be reported with its case
        faults = [repr(error) or "hangs"]
    report.num_cases += 1
    report.took(time.perf_counter() - begin_s, f"case {case_seed} ({case.kind})")
    for fault in faults:
        if fault is not None:
            report.fault(f"case {case_seed} ({case.kind}): {fault}")


def case_maker() -> Callable[[int], Case]:
    """From a seed to its case."""
    modules = (*FIRST_MODULES, *MODULES)
    document = describe([route for module in modules for route in module.router.routes])
    return lambda seed: make_case(seed, document)


async def _left_overs(built: Engine, tried: Target) -> AsyncIterator[str]:
    """What is wrong with servers and an engine that nobody asks anything."""
    if not built.client.alive():
        yield "the engine is dead"
        return
    deadline_s = time.monotonic() + IDLE_S
    while left := list(_running(built, tried)):
        if time.monotonic() > deadline_s:
            for text in left:
                yield f"is left: {text}"
            return
        await asyncio.sleep(0.01)
    stats = built.client.stats()
    if stats.free_blocks != stats.num_blocks:
        yield f"{stats.num_blocks - stats.free_blocks} blocks are lost"
    await built.client._ask(_check)


def _running(built: Engine, tried: Target) -> Iterator[str]:
    """What has not ended: in the engine, and in the servers around it."""
    stats = built.client.stats()
    if stats.running or stats.waiting:
        yield f"{stats.running} requests run, {stats.waiting} wait"
    for name, app in tried.apps.items():
        serving, kept = app.state.serving, app.state.responses
        if serving.drain.in_flight:
            yield f"{serving.drain.in_flight} connections of {name}"
        if kept.background._runs:
            yield f"{len(kept.background._runs)} responses in the background of {name}"
        for tenant, account in serving.quotas._accounts.items():
            if account.num_active:
                yield f"{account.num_active} requests on the account of {tenant!r} of {name}"


def _hardly_tried(paths: Counter[tuple[str, int]]) -> Iterator[str]:
    """Routes that take a body, and were seldom sent a good one."""
    for path in BASES:
        asked = sum(count for (name, _), count in paths.items() if name == path)
        if asked > 100 and paths[path, 200] < LEAST_GOOD * asked:
            yield path


def _check(core: EngineCore) -> None:
    core._scheduler.check()


def _keep_few_events(core: EngineCore) -> None:
    core.log._capacity = KV_EVENTS


def rss_mib() -> float:
    """Resident memory of this process."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def show(report: Report) -> None:
    """Print what a run found."""
    for counts, width in ((report.statuses, 10), (_busiest(report.paths), 32)):
        rows: dict[str, Counter[int]] = {}
        for (name, status), count in counts.items():
            rows.setdefault(name[:width], Counter())[status] += count
        for name, statuses in sorted(rows.items()):
            told = "  ".join(f"{status}: {n:,}" for status, n in sorted(statuses.items()))
            print(f"{name:{width}} {told}")
    print(
        f"{report.num_cases:,} cases with {sum(report.statuses.values()):,} requests in "
        f"{report.seconds:.0f} s: {report.num_cases / report.seconds:.0f}/s; "
        f"{report.num_streams} long streams"
    )
    print("slowest:", ", ".join(f"{what} {seconds:.1f} s" for seconds, what in report.slowest))
    print("least memory in each tenth:", ", ".join(f"{each:.0f}" for each in report.rss_mib), "MiB")
    print(f"{len(report.faults)} faults")


def _busiest(paths: Counter[tuple[str, int]]) -> Counter[tuple[str, int]]:
    """Answers of the routes that were asked most."""
    totals = Counter[str]()
    for (path, _), count in paths.items():
        totals[path] += count
    most = {path for path, _ in totals.most_common(32)}
    return Counter({key: count for key, count in paths.items() if key[0] in most})


def _route(path: str) -> str:
    """A path without what follows "?", and without ids: so that there are few of them."""
    parts = path.split("?")[0].split("/")
    if path.startswith(("/v1/responses/", "/v1/sessions/", "/v1/explain/")) and len(parts) > 3:
        parts[3] = "*" if parts[3] != "input_tokens" else parts[3]
    return "/".join(parts) if path[:1] == "/" else "other"


async def show_case(built: Engine, case_seed: int) -> None:
    """Run one case and print it with its answers."""
    case = case_maker()(case_seed)
    print(case)
    async with target(built) as tried:
        for ask, answer in await tried.run(case):
            print(ask.method, ask.path, ask.query, answer, problem(ask, answer), sep="\n  ")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--case", type=int, help="run the case of this seed and show it")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    settle_heap()  # As `kokuban serve` does.
    with engine() as built:
        if arguments.case is not None:
            asyncio.run(show_case(built, arguments.case))
            return
        report = asyncio.run(fuzz(built, arguments.cases, arguments.seed, arguments.streams))
    show(report)
    sys.exit(bool(report.faults))


if __name__ == "__main__":
    main()
