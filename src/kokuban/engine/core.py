"""One step after another: plan, run, commit. Knows no thread, no socket and no event loop.

Owns: the scheduler and the executor, and the counts that `stats` reports.
Never: text. Stop strings, decoding and templates belong to `generation` and the server.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from kokuban.core.errors import KokubanError
from kokuban.core.request import Request, RequestId
from kokuban.core.step import Chunk, StepPlan, TokenEvent
from kokuban.engine.client import EngineStats
from kokuban.observe.clock import Clock
from kokuban.runner.executor import Executor
from kokuban.scheduler.scheduler import Scheduler


class EngineCore:
    """The loop's body. One thread calls it."""

    def __init__(self, scheduler: Scheduler, executor: Executor, clock: Clock) -> None:
        self._scheduler = scheduler
        self._executor = executor
        self._clock = clock
        self._in_flight: deque[tuple[StepPlan, float]] = deque()
        self._totals = EngineStats()

    def add(self, requests: Sequence[Request]) -> None:
        """Queue requests that belong together, all or none.

        Raises:
            Overloaded, RequestError: from the first that was refused; none is queued then.
        """
        now_s = self._clock.now()
        for done, request in enumerate(requests):
            try:
                self._scheduler.add(replace(request, arrival_s=now_s), now_s)
            except KokubanError:
                for earlier in requests[:done]:
                    self._scheduler.cancel(earlier.id)
                raise

    def cancel(self, request_id: RequestId) -> None:
        """Forget a request; unknown ids are ignored."""
        self._scheduler.cancel(request_id)

    @property
    def idle(self) -> bool:
        """Whether there is nothing to run and nothing in flight."""
        return not self._in_flight and not self._scheduler.has_work

    def step(self) -> list[TokenEvent]:
        """Advance by one step and tell what it brought.

        With an executor of depth 1 the next step is planned while one is computed.
        """
        plan = self._scheduler.plan(self._clock.now())
        if plan is not None:
            self._executor.submit(plan)
            self._in_flight.append((plan, self._clock.now()))
        events = list(self._scheduler.take_events())
        wanted = self._executor.depth if plan is not None else 0
        while len(self._in_flight) > wanted:
            events += self._collect()
        return events

    def _collect(self) -> list[TokenEvent]:
        plan, begun_s = self._in_flight.popleft()
        result = self._executor.collect()
        now_s = self._clock.now()
        events = self._scheduler.commit(plan, result, now_s)
        totals = self._totals
        new_tokens = sum(len(event.tokens) for event in events)
        self._totals = replace(
            totals,
            steps=totals.steps + 1,
            prompt_tokens=totals.prompt_tokens
            + sum(len(chunk.token_ids) for chunk in plan.chunks if not _decodes(chunk)),
            output_tokens=totals.output_tokens + new_tokens,
            preemptions=totals.preemptions + len(plan.preempted),
            failed_requests=totals.failed_requests
            + sum(event.error is not None for event in events),
            step_ms=(now_s - begun_s) * 1e3,
        )
        return list(events)

    def stats(self) -> EngineStats:
        """A snapshot of queues, pool and totals."""
        counts = self._scheduler.counts()
        return replace(
            self._totals,
            running=counts.running,
            waiting=counts.waiting,
            free_blocks=counts.free_blocks,
            num_blocks=counts.num_blocks,
        )

    def close(self) -> None:
        """Give back what the executor holds."""
        self._executor.close()


def _decodes(chunk: Chunk) -> bool:
    return chunk.samples and len(chunk.token_ids) == 1
