"""What becomes of a server that is asked for several times what it can do?

First its capacity is measured, with as many requests at once as it has seats for. Then requests
arrive by a Poisson process at a multiple of that, whether or not it answers (an open loop). The
server promises a time: who would wait longer is to be told so at once (429).

    nice -n 5 python benchmarks/overload.py model.gguf --times 3 --seconds 600 --promise 10

Says what became of all requests, the time to the first token of those that were taken, how long it
took to be refused, how long the queue was, how fast /health answered, and the server's memory. The
exit code is 1 when a request was lost, when the 99th percentile of the time to the first token is
above the promise, when the queue had no bound, or when memory grew.
"""

import argparse
import asyncio
import json
import random
import re
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.peers.servers import Server, kokuban, running

from kokuban.bench.answer import Outcome
from kokuban.bench.arrivals import arrival_times, schedule
from kokuban.bench.connection import parse_address
from kokuban.bench.jobs import Lengths, parse_lengths, random_jobs
from kokuban.bench.load import LoadRunner, Target
from kokuban.bench.stats import Distribution, distribution

SAMPLE_S = 1.0
WARM_SHARE = 0.2
"""Of the samples, before memory is taken to have its size."""

MAX_GROWTH_MB = 20.0
NAME = "m"


@dataclass(frozen=True)
class Sample:
    """The server at one moment of the overload."""

    at_s: float
    running: int
    waiting: int
    rss_mb: float
    health_ms: float


@dataclass(frozen=True)
class Report:
    """What is told. Times are in seconds."""

    capacity_rps: float
    rate_rps: float
    seconds: float
    promise_s: float
    sent: int
    answered: int
    refused: int
    lost: dict[str, int]
    """Everything else, by what it ended with: nothing should be here."""

    tokens: int
    ttft_s: Distribution | None
    """Of the answered, from when they were due."""

    refusal_s: Distribution | None
    """How long it took to be told."""

    most_waiting: int
    health_ms: Distribution | None
    rss_first_mb: float
    rss_last_mb: float

    def problems(self) -> list[str]:
        """What breaks a promise."""
        found = [f"{count} requests ended with {kind}" for kind, count in self.lost.items()]
        if self.sent != self.answered + self.refused + sum(self.lost.values()):
            found.append("the numbers of requests do not add up")
        if not self.answered:
            found.append("nobody was answered")
        if not self.refused:
            found.append("nobody was refused: this was no overload")
        if self.ttft_s is not None and self.ttft_s.p99 > self.promise_s:
            found.append(f"p99 TTFT {self.ttft_s.p99:.2f} s is above the {self.promise_s:g} s")
        # As many as could begin within the time, and as much again for what the pace may change.
        if self.most_waiting > 2 * self.capacity_rps * self.promise_s + 1:
            found.append(f"{self.most_waiting} requests waited at once")
        if (growth := self.rss_last_mb - self.rss_first_mb) > MAX_GROWTH_MB:
            found.append(f"memory grew by {growth:.1f} MB")
        return found


def report_of(
    outcomes: Sequence[Outcome],
    samples: Sequence[Sample],
    *,
    capacity_rps: float,
    rate_rps: float,
    seconds: float,
    promise_s: float,
) -> Report:
    """Sort what happened. A queue's refusal may also come after some waiting, as a stream's end."""
    answered = [each for each in outcomes if each.error is None]
    refused = [each for each in outcomes if each.error is not None and is_refusal(each)]
    lost = Counter(
        f"{each.error}: {each.detail[:80]}"
        for each in outcomes
        if each.error is not None and not is_refusal(each)
    )
    warm = samples[int(len(samples) * WARM_SHARE) :]
    return Report(
        capacity_rps=capacity_rps,
        rate_rps=rate_rps,
        seconds=seconds,
        promise_s=promise_s,
        sent=len(outcomes),
        answered=len(answered),
        refused=len(refused),
        lost=dict(lost),
        tokens=sum(each.tokens for each in answered),
        ttft_s=distribution(sorted(each.ttft_s for each in answered if each.ttft_s is not None)),
        refusal_s=distribution(sorted(each.end_s - each.sent_s for each in refused)),
        most_waiting=max((each.waiting for each in samples), default=0),
        health_ms=distribution(sorted(each.health_ms for each in samples)),
        rss_first_mb=warm[0].rss_mb if warm else 0.0,
        rss_last_mb=warm[-1].rss_mb if warm else 0.0,
    )


def is_refusal(outcome: Outcome) -> bool:
    """Whether the server said that it has no room: at once, or when the time was over."""
    return outcome.error == "http_429" or "deadline was" in outcome.detail


async def capacity(target: Target, lengths: tuple[Lengths, Lengths], seats: int) -> float:
    """Requests a second with all seats taken and nobody waiting, over four rounds of them."""
    times = [0.0] * (4 * seats)
    jobs = random_jobs(times, *lengths, token_ids=False, draw=random.Random(1))
    runner = LoadRunner(target, max_concurrency=seats)
    try:
        run = await runner.run(jobs)
    finally:
        runner.close()
    failed = [each for each in run.outcomes if each.error is not None]
    if failed:
        sys.exit(f"the server failed without any overload: {failed[0].error} {failed[0].detail}")
    return len(jobs) / run.seconds


async def watch(server: Server, samples: list[Sample]) -> None:
    """Take a sample each second until cancelled."""
    begun = time.perf_counter()
    while True:
        samples.append(await asyncio.to_thread(take_sample, server, begun))
        await asyncio.sleep(SAMPLE_S)


def take_sample(server: Server, begun: float) -> Sample:
    before = time.perf_counter()
    with urllib.request.urlopen(f"{server.url}/health", timeout=60):
        health_ms = (time.perf_counter() - before) * 1e3
    with urllib.request.urlopen(f"{server.url}/stats", timeout=60) as response:
        stats = json.load(response)
    status = Path(f"/proc/{server.pid}/status").read_text()
    found = re.search(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE)
    assert found is not None, "the server has no memory"
    rss_mb = int(found[1]) * 1024 / 1e6
    return Sample(before - begun, stats["running"], stats["waiting"], rss_mb, health_ms)


async def overload(server: Server, options: argparse.Namespace) -> tuple[Report, list[Sample]]:
    """Measure the capacity, then ask for too much."""
    lengths = (
        parse_lengths("--prompt-tokens", options.prompt_tokens),
        parse_lengths("--output-tokens", options.output_tokens),
    )
    target = Target(
        address=parse_address(server.url),
        model=NAME,
        endpoint="completions",
        extra={"ignore_eos": True},
        timeout_s=options.promise * 10 + 120,
    )
    rps = await capacity(target, lengths, options.seats)
    rate = rps * options.times
    print(f"capacity {rps:.2f} requests/s; now {rate:.2f} for {options.seconds:g} s", flush=True)
    draw = random.Random(options.seed)
    arrivals = arrival_times("poisson", rate, burst_size=1, draw=draw)
    times = schedule(arrivals, num_requests=0, duration_s=options.seconds)
    jobs = random_jobs(times, *lengths, token_ids=False, draw=draw)
    samples: list[Sample] = []
    watcher = asyncio.create_task(watch(server, samples))
    runner = LoadRunner(target)
    try:
        run = await runner.run(jobs)
    finally:
        watcher.cancel()
        runner.close()
    await asyncio.gather(watcher, return_exceptions=True)
    report = report_of(
        run.outcomes,
        samples,
        capacity_rps=rps,
        rate_rps=rate,
        seconds=options.seconds,
        promise_s=options.promise,
    )
    return report, samples


def table(report: Report) -> str:
    """For people."""

    def line(name: str, found: Distribution | None, scale: float = 1.0) -> str:
        if found is None:
            return f"{name:<22} -"
        values = (found.p50, found.p90, found.p99, found.max)
        return f"{name:<22}" + "".join(f"{value * scale:>10.2f}" for value in values)

    growth = report.rss_last_mb - report.rss_first_mb
    return "\n".join(
        [
            f"{'sent':<22}{report.sent:>10}",
            f"{'answered':<22}{report.answered:>10}   {report.tokens} tokens",
            f"{'refused (429)':<22}{report.refused:>10}",
            f"{'lost':<22}{sum(report.lost.values()):>10}   {report.lost or ''}",
            f"{'most waiting':<22}{report.most_waiting:>10}",
            f"{'memory, MB':<22}{report.rss_last_mb:>10.1f}   {growth:+.1f} since warm",
            f"{'':<22}{'p50':>10}{'p90':>10}{'p99':>10}{'max':>10}",
            line(f"TTFT, s (<= {report.promise_s:g})", report.ttft_s),
            line("refusal, ms", report.refusal_s, 1e3),
            line("/health, ms", report.health_ms),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path, help="a GGUF file")
    parser.add_argument("--times", type=float, default=3.0, help="the capacity, so many times")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--promise", type=float, default=10.0, help="--max-queue-wait, in seconds")
    parser.add_argument("--seats", type=int, default=16, help="--max-running-requests")
    parser.add_argument("--kv-memory", default="128MiB", help="small: its pages are soon touched")
    parser.add_argument("--prompt-tokens", default="32:128")
    parser.add_argument("--output-tokens", default="16:64")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    kind = kokuban(
        options.model,
        options.threads,
        ("--served-model-name", NAME, "--max-queue-wait", str(options.promise),
         "--max-running-requests", str(options.seats), "--kv-memory", options.kv_memory),
    )  # fmt: skip
    with running(kind) as server:
        report, samples = asyncio.run(overload(server, options))
    print(table(report))
    problems = report.problems()
    if options.json is not None:
        found = {**asdict(report), "problems": problems, "samples": [asdict(s) for s in samples]}
        options.json.write_text(json.dumps(found, indent=1))
    print("\n".join(problems) or "every promise was kept")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
