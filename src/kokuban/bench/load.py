"""Sends requests when they are due, however the server fares with those before.

An open loop: a server that stalls meets the arrivals that its users would have made meanwhile, and
times count from when a request was due, so that neither a stall of the server nor one of the client
hides any waiting (no coordinated omission). With a limit on concurrency requests wait for a place
here, and that counts too; `sent_s` tells how long.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from kokuban.bench.answer import Outcome, StreamTaker
from kokuban.bench.connection import Address, Connections, Disconnected
from kokuban.bench.jobs import Job
from kokuban.bench.protocol import PATHS, Endpoint, encode_body
from kokuban.bench.wire import WireError


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Whom to ask, and how."""

    address: Address
    model: str
    endpoint: Endpoint
    api_key: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Fields added to each body."""

    timeout_s: float = 600.0
    """Of one answer, from its sending to its end."""


@dataclass(frozen=True, slots=True)
class Run:
    """All that happened."""

    outcomes: tuple[Outcome, ...]
    """In the order of the jobs."""

    seconds: float
    """From the start, when the first request could be due, to the end of the last answer."""

    client_cpu_s: float
    """Processor time that this process took meanwhile."""

    max_running: int
    """Most requests that were sent and not answered at one moment."""

    connections: int
    """Opened in all."""


class LoadRunner:
    """Runs jobs against one server.

    Args:
        max_concurrency: requests sent and not answered at once; 0: any number.
    """

    def __init__(self, target: Target, *, max_concurrency: int = 0) -> None:
        headers = {"authorization": f"Bearer {target.api_key}"} if target.api_key else {}
        self._target = target
        self._connections = Connections(target.address, headers)
        self._places = asyncio.Semaphore(max_concurrency) if max_concurrency else nullcontext()
        self._running = self._max_running = 0
        self._zero_s = 0.0

    async def run(
        self, jobs: Sequence[Job], on_done: Callable[[Outcome], None] = lambda outcome: None
    ) -> Run:
        """Send every job when it is due, and wait for all answers.

        Args:
            on_done: told of each answer or failure.
        """
        ended = [asyncio.Event() for _ in jobs]
        cpu_s = time.process_time()
        self._zero_s = time.perf_counter()
        self._max_running = 0
        tasks: list[asyncio.Task[Outcome]] = []
        for index, job in sorted(enumerate(jobs), key=lambda pair: _due(pair[1])):
            if job.after is None:
                await self._sleep_until(job.arrival_s)
            before = None if job.after is None else ended[job.after]
            tasks.append(asyncio.create_task(self._one(index, job, before, ended[index], on_done)))
        outcomes = await asyncio.gather(*tasks)
        return Run(
            tuple(sorted(outcomes, key=lambda outcome: outcome.index)),
            max((outcome.end_s for outcome in outcomes), default=0.0),
            time.process_time() - cpu_s,
            self._max_running,
            self._connections.num_opened,
        )

    def close(self) -> None:
        """Give the connections back."""
        self._connections.close()

    async def _one(
        self,
        index: int,
        job: Job,
        before: asyncio.Event | None,
        ended: asyncio.Event,
        on_done: Callable[[Outcome], None],
    ) -> Outcome:
        arrival_s = job.arrival_s
        if before is not None:
            await before.wait()
            arrival_s = self._now_s() + job.think_s
            await self._sleep_until(arrival_s)
        outcome = Outcome(index=index, arrival_s=arrival_s, max_tokens=job.max_tokens)
        async with self._places:
            self._running += 1
            self._max_running = max(self._max_running, self._running)
            try:
                await self._ask(job, outcome)
            finally:
                self._running -= 1
                ended.set()
        on_done(outcome)
        return outcome

    async def _ask(self, job: Job, outcome: Outcome) -> None:
        """Send one request and take its answer. No failure leaves here: it is in the outcome."""
        target = self._target
        body = encode_body(target.endpoint, target.model, job, target.extra)
        taker = StreamTaker(outcome, self._zero_s)
        outcome.sent_s = self._now_s()
        kind, detail = None, ""
        try:
            async with asyncio.timeout(target.timeout_s):
                path = PATHS[target.endpoint]
                taker.finish(await self._connections.request("POST", path, body, taker.take))
        except TimeoutError:
            kind, detail = "timeout", f"no end of the answer after {target.timeout_s:g} s"
        except Disconnected as error:
            kind, detail = "disconnected", str(error)
        except WireError as error:
            kind, detail = "bad_http", str(error)
        except OSError as error:
            kind, detail = "connect", error.strerror or str(error)
        if outcome.error is None:
            outcome.error, outcome.detail = kind, detail
        if outcome.error is not None or not outcome.end_s:
            outcome.end_s = self._now_s()

    def _now_s(self) -> float:
        return time.perf_counter() - self._zero_s

    async def _sleep_until(self, time_s: float) -> None:
        if (wait_s := time_s - self._now_s()) > 0:
            await asyncio.sleep(wait_s)


def _due(job: Job) -> float:
    """Where a job stands in the order of sending; who waits for another may be told at once."""
    return job.arrival_s if job.after is None else 0.0
