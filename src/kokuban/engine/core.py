"""One step after another: plan, run, commit. Knows no thread, no socket and no event loop.

Owns: the scheduler and the executor.
Never: text. Stop strings, decoding and templates belong to `generation` and the server.
"""

import logging
import time
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from kokuban.core.request import Request, RequestId
from kokuban.core.session import SessionStatus
from kokuban.core.speculation import Proposer
from kokuban.core.step import StepPlan, TokenEvent
from kokuban.engine.client import EngineStats
from kokuban.kvcache.events import EventLog
from kokuban.kvcache.manager import Manager
from kokuban.observe.clock import Clock
from kokuban.runner.executor import Executor
from kokuban.scheduler.scheduler import Scheduler
from kokuban.scheduler.sessions import SessionKey

if TYPE_CHECKING:
    from kokuban.kvcache.disk_tier import DiskTier

FLUSH_S = 5.0
"""Seconds that the end of an engine may take to write KV to disk, twice at most."""

FLUSH_PAUSE_S = 0.005
"""Between two looks whether the disk takes more."""

_log = logging.getLogger(__name__)


class EngineCore:
    """The loop's body. One thread calls it.

    Args:
        manager: the scheduler's own; asked for counts, and to forget what is cached.
        log: where the manager's pool tells what it stores and loses; None: nowhere.
        disk: what lies below host memory, closed with the core.
        proposer: the scheduler's, closed with the core; None: there is none.
        debug: whether all invariants are checked whenever there is nothing else to do.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        manager: Manager,
        executor: Executor,
        clock: Clock,
        log: EventLog | None = None,
        disk: "DiskTier | None" = None,
        proposer: Proposer | None = None,
        debug: bool = False,
    ) -> None:
        self._scheduler = scheduler
        self._manager = manager
        self._executor = executor
        self._clock = clock
        self._log = log
        self._disk = disk
        self._proposer = proposer
        self._debug = debug
        self._stalled = False
        self._in_flight: deque[tuple[StepPlan, float]] = deque()
        self._step_ms = 0.0

    @property
    def log(self) -> EventLog | None:
        """The KV events. Any thread may read them."""
        return self._log

    def add(self, requests: Sequence[Request]) -> None:
        """Queue requests that belong together, all or none.

        Raises:
            Overloaded, RequestError: none is queued then.
        """
        now_s = self._clock.now()
        most_s = self._scheduler.max_queue_wait_s
        stamped = []
        for request in requests:
            deadline_s = request.deadline_s
            if deadline_s is None and most_s is not None:
                deadline_s = now_s + most_s
            stamped.append(replace(request, arrival_s=now_s, deadline_s=deadline_s))
        self._scheduler.add_group(stamped, now_s)

    def cancel(self, request_id: RequestId) -> None:
        """Forget a request; unknown ids are ignored."""
        self._scheduler.cancel(request_id)

    def suspend(self, request_ids: Collection[RequestId], *, begins: bool) -> None:
        """Compute no more of requests for now, since nobody takes what they say, or go on.

        Whoever suspends requests lets them go on, also those that have ended meanwhile.
        """
        if begins:
            self._scheduler.suspended.update(request_ids)
        else:
            self._scheduler.suspended.difference_update(request_ids)

    def reset_prefix_cache(self) -> int:
        """Forget the content of free blocks; returns how many had one."""
        return self._scheduler.forget_cached()

    def pause_session(
        self, key: SessionKey, expected_s: float | None, tools: Sequence[str]
    ) -> SessionStatus | None:
        """See `EngineClient.pause_session`."""
        return self._scheduler.sessions.pause(key, expected_s, tools, self._clock.now())

    def resume_session(self, key: SessionKey) -> SessionStatus | None:
        """See `EngineClient.resume_session`."""
        return self._scheduler.sessions.resume(key, self._clock.now())

    def delete_session(self, key: SessionKey) -> bool:
        """See `EngineClient.delete_session`."""
        return self._scheduler.sessions.delete(key)

    def session_status(self, key: SessionKey) -> SessionStatus | None:
        """See `EngineClient.session_status`."""
        return self._scheduler.sessions.status(key)

    @property
    def wait_s(self) -> float | None:
        """How long an idle engine may sleep: until a session must come back. None: any time."""
        due_s = self._scheduler.next_due_s
        return None if due_s is None else max(0.0, due_s - self._clock.now())

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do until somebody asks for something, or the disk answers."""
        return not self._in_flight and (self._stalled or not self._scheduler.has_work)

    @property
    def has_requests(self) -> bool:
        """Whether anybody waits for an answer, so that deadlines may pass."""
        return self._scheduler.has_requests

    def step(self) -> list[TokenEvent]:
        """Advance by one step and tell what it brought.

        With an executor of depth 1 the next step is planned while one is computed.
        """
        now_s = self._clock.now()
        events = list(self._scheduler.expire(now_s))
        plan = self._scheduler.plan(now_s)
        self._stalled = plan is None
        if plan is not None:
            self._executor.submit(plan)
            self._in_flight.append((plan, now_s))
        wanted = self._executor.depth if plan is not None else 0
        while len(self._in_flight) > wanted:
            events += self._collect()
        return events

    def rest(self) -> None:
        """Called before the engine sleeps for want of work: the time to check itself."""
        if self._debug and not self._in_flight:
            self._scheduler.check()

    def _collect(self) -> Sequence[TokenEvent]:
        plan, begun_s = self._in_flight.popleft()
        result = self._executor.collect()
        now_s = self._clock.now()
        self._step_ms = (now_s - begun_s) * 1e3
        return self._scheduler.commit(plan, result, now_s)

    def stats(self) -> EngineStats:
        """A snapshot of queues, pool and totals."""
        stats = self._scheduler.stats()
        totals = stats.totals
        return EngineStats(
            running=stats.running,
            waiting=stats.waiting,
            free_blocks=self._manager.num_free,
            num_blocks=self._manager.num_blocks,
            steps=totals.steps,
            step_sizes=tuple(totals.step_sizes),
            step_tokens=totals.step_tokens,
            prompt_tokens=totals.prompt_tokens,
            output_tokens=totals.output_tokens,
            preemptions=totals.preemptions,
            cached_tokens=totals.cached_tokens,
            forked_tokens=totals.forked_tokens,
            failed_requests=totals.failed_requests,
            recomputed_tokens=totals.recomputed_tokens,
            drafts=totals.drafts,
            drafted_tokens=totals.drafted_tokens,
            accepted_tokens=totals.accepted_tokens,
            tiers=() if self._manager.below is None else self._manager.below.stats(),
            retry_after_s=stats.retry_after_s,
            step_ms=self._step_ms,
        )

    def close(self) -> None:
        """Keep what can be kept of the KV, and give back what executor and disk hold."""
        if self._disk is not None:
            self._flush()
            lost = self._disk.close(FLUSH_S)
            if lost:
                _log.warning("%d KV blocks were not written to disk in %.0f s", lost, FLUSH_S)
        if self._proposer is not None:
            self._proposer.close()
        self._executor.close()

    def _flush(self) -> None:
        """Send everything down that is worth it, as far as host memory and time reach."""
        end_s = self._clock.now() + FLUSH_S
        self._scheduler.cancel_all()
        below = self._manager.below
        while below is not None and (below.has_stores or below.has_spills):
            if self._clock.now() > end_s:
                return
            self.step()
            if self._stalled:  # The disk's queue is full.
                time.sleep(FLUSH_PAUSE_S)
