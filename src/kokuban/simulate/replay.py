"""Replays a trace through the real scheduler, manager and pool, in simulated time.

A request enters the engine when it arrives. Turns of a session enter one after another, each
`think_s` after the end of the one before, however long that took. Latency counts from arrival.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass

from kokuban.core.config import SchedulerConfig
from kokuban.core.errors import RequestError
from kokuban.core.request import Request, RequestId
from kokuban.core.sampling_params import SamplingParams
from kokuban.core.step import StepPlan, TokenEvent, Usage
from kokuban.engine.core import EngineCore
from kokuban.kvcache.manager import Manager
from kokuban.kvcache.pool import BlockPool
from kokuban.kvcache.prefix import KeySpace
from kokuban.kvcache.tiers import LowerTiers
from kokuban.plan.cost import CostModel
from kokuban.program.program import KvSpec
from kokuban.scheduler.prices import ModelPrices, block_worth
from kokuban.scheduler.scheduler import Scheduler
from kokuban.simulate.executor import SimulatedClock, SimulatedExecutor
from kokuban.simulate.meter import Latencies, Meter, Percentiles
from kokuban.simulate.synthesis import Synthesizer
from kokuban.simulate.trace import Trace

MAX_WAITING = 64
"""Requests that wait inside the engine; others wait, in the same order, as lines of the trace. More
than the scheduler ever looks at, and few enough that their tokens fit in memory."""

Progress = Callable[[int, int], None]
"""Called with requests ended and requests in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySetup:
    """The engine that a trace is replayed on."""

    model: CostModel
    kv: KvSpec
    num_blocks: int
    max_context_tokens: int
    scheduler: SchedulerConfig
    num_ram_blocks: int = 0
    """Blocks that host memory holds of what leaves the pool."""

    @property
    def block_bytes(self) -> int:
        """K and V of one block."""
        tokens = self.scheduler.block_size
        return tokens * self.model.kv_bytes_per_token // len(self.kv.groups)

    @property
    def num_slots(self) -> int:
        """Tokens that the pool holds when no window gives any back."""
        return self.num_blocks // len(self.kv.groups) * self.scheduler.block_size


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayResult:
    """What came of it. Rates are shares from 0 to 1, times are simulated seconds."""

    num_requests: int
    """Requests that were answered."""

    num_refused: int
    """Requests that no pool or context of this size can hold; later turns of theirs included."""

    prompt_tokens: int
    cached_tokens: int
    cached_ram_tokens: int
    """Those of them that came up from host memory."""

    output_tokens: int
    computed_tokens: int
    """In all steps, prompts and answers."""

    recomputed_tokens: int
    preemptions: int
    num_steps: int
    duration_s: float
    busy_s: float
    waste: float
    """Of the slots held, those that hold no token."""

    mean_running: float
    max_running: int
    ttft_s: Percentiles
    tpot_s: Percentiles

    @property
    def hit_rate(self) -> float:
        """Share of the prompt tokens that were cached."""
        return self.cached_tokens / max(1, self.prompt_tokens)


def replay(trace: Trace, setup: ReplaySetup, progress: Progress | None = None) -> ReplayResult:
    """Run the whole trace."""
    return Replay(trace, setup, progress).run()


def make_manager(setup: ReplaySetup) -> Manager:
    """Block tables over an empty pool."""
    config = setup.scheduler
    return Manager(
        BlockPool(setup.num_blocks, eviction=config.eviction),
        block_size=config.block_size,
        windows=[group.window for group in setup.kv.groups],
        key_space=_key_space(config) if config.prefix_cache else None,
        tiers=LowerTiers(setup.num_ram_blocks) if setup.num_ram_blocks else None,
        worth=block_worth(ModelPrices(setup.model, setup.block_bytes), config.block_size),
    )


class Replay:
    """One run. Who wants to see more of it, or to say more to the engine, overrides `on_plan`,
    `on_end` and `make_request`."""

    def __init__(self, trace: Trace, setup: ReplaySetup, progress: Progress | None = None) -> None:
        self._trace = trace
        self._progress = progress
        self._clock = SimulatedClock()
        self._meter = Meter()
        self._latencies = Latencies()
        self.synthesizer = Synthesizer(trace)
        self.manager = make_manager(setup)
        self.prices = ModelPrices(setup.model, setup.block_bytes)
        self.core = self._make_core(setup)
        self._turns = _turns(trace)
        self._arrivals = [
            (trace.requests[turns[0]].arrival_s, turns[0]) for turns in self._turns.values()
        ]
        heapq.heapify(self._arrivals)
        self._arrived_s: dict[int, float] = {}
        self._first_s: dict[int, float] = {}
        self._num_refused = 0
        self._receipts: list[Usage] = []

    def run(self) -> ReplayResult:
        """Serve everything."""
        while self._arrivals or not self.core.idle:
            if not self._admit() and self.core.idle:
                self._sleep()
                continue
            for event in self.core.step():
                self._note(event)
        return self._result()

    @property
    def now_s(self) -> float:
        """Seconds since the start of the trace."""
        return self._clock.now()

    def on_plan(self, plan: StepPlan) -> None:
        """A step has been planned and is about to run."""

    def on_end(self, index: int, usage: Usage, ttft_s: float) -> None:
        """A request has ended, and nothing has happened since."""

    def make_request(self, index: int, session: str = "") -> Request:
        """What the engine is asked for."""
        line = self._trace.requests[index]
        return Request(
            id=RequestId(str(index)),
            prompt_token_ids=self.synthesizer.prompt(index),
            params=SamplingParams(temperature=0.0, max_tokens=line.output_tokens, ignore_eos=True),
            session=session,
        )

    def turn_before(self, index: int) -> int | None:
        """The turn of the same session that a request follows."""
        turns = self._turns[_session(self._trace, index)]
        place = turns.index(index)
        return turns[place - 1] if place else None

    def turn_after(self, index: int) -> int | None:
        """The turn of the same session that follows a request."""
        turns = self._turns[_session(self._trace, index)]
        place = turns.index(index) + 1
        return turns[place] if place < len(turns) else None

    def _sleep(self) -> None:
        """Let time pass until a request arrives, or a session must come back."""
        wait_s = self.core.wait_s
        next_s = self._arrivals[0][0] if self._arrivals else None
        if wait_s is not None and (next_s is None or self._clock.now() + wait_s < next_s):
            self._clock.advance(wait_s)
            self.core.step()
        elif next_s is not None:
            self._clock.advance_to(next_s)

    def _make_core(self, setup: ReplaySetup) -> EngineCore:
        config, manager = setup.scheduler, self.manager
        scheduler = Scheduler(
            config,
            manager,
            max_context_tokens=setup.max_context_tokens,
            prices=self.prices,
        )
        executor = SimulatedExecutor(
            setup.model,
            setup.kv,
            block_size=config.block_size,
            block_bytes=setup.block_bytes,
            clock=self._clock,
            script=lambda request_id, place: self.synthesizer.output_token(int(request_id), place),
            meter=self._meter,
            num_held=lambda: manager.num_blocks - manager.num_free,
            on_plan=self.on_plan,
        )
        return EngineCore(scheduler, manager, executor, self._clock)

    def _admit(self) -> bool:
        """Hand the engine what has arrived, as far as it looks; whether there was anything."""
        num_before = len(self._arrivals)
        while self._arrivals and self._arrivals[0][0] <= self._clock.now():
            if self.core.stats().waiting >= MAX_WAITING:
                break
            arrival_s, index = heapq.heappop(self._arrivals)
            self._arrived_s[index] = arrival_s
            try:
                self.core.add([self.make_request(index)])
            except RequestError:
                self._refuse(index)
        return len(self._arrivals) < num_before

    def _refuse(self, index: int) -> None:
        """A request that cannot be held; the turns after it are longer still."""
        del self._arrived_s[index]
        turns = self._turns.pop(_session(self._trace, index))
        self._num_refused += len(turns) - turns.index(index)

    def _note(self, event: TokenEvent) -> None:
        index, now_s = int(event.request_id), self._clock.now()
        if event.tokens and index not in self._first_s:
            self._first_s[index] = now_s
        if event.finish is None:
            return
        assert event.usage is not None, "an event that ends a request has a receipt"
        self._receipts.append(event.usage)
        arrival_s, first_s = self._arrived_s.pop(index), self._first_s.pop(index)
        self._latencies.note(
            arrival_s=arrival_s,
            first_s=first_s,
            last_s=now_s,
            num_output=event.usage.output_tokens,
        )
        self.on_end(index, event.usage, first_s - arrival_s)
        self._go_on(index, now_s)
        if self._progress is not None:
            self._progress(len(self._receipts) + self._num_refused, len(self._trace.requests))

    def _go_on(self, index: int, now_s: float) -> None:
        """Let the session's next turn arrive once its tool or human has done."""
        following = self.turn_after(index)
        if following is not None:
            think_s = self._trace.requests[following].think_s
            heapq.heappush(self._arrivals, (now_s + think_s, following))

    def _result(self) -> ReplayResult:
        totals = self.core.stats()
        return ReplayResult(
            num_requests=len(self._receipts),
            num_refused=self._num_refused,
            prompt_tokens=sum(usage.prompt_tokens for usage in self._receipts),
            cached_tokens=sum(usage.cached_tokens for usage in self._receipts),
            cached_ram_tokens=sum(usage.cached_ram_tokens for usage in self._receipts),
            output_tokens=totals.output_tokens,
            computed_tokens=self._meter.num_tokens,
            recomputed_tokens=sum(usage.recomputed_tokens for usage in self._receipts),
            preemptions=totals.preemptions,
            num_steps=self._meter.num_steps,
            duration_s=self._clock.now(),
            busy_s=self._meter.busy_s,
            waste=self._meter.waste,
            mean_running=self._meter.mean_running,
            max_running=self._meter.max_running,
            ttft_s=self._latencies.ttft,
            tpot_s=self._latencies.tpot,
        )


def _session(trace: Trace, index: int) -> str:
    """The session of a request; one of its own for a request that has none."""
    return trace.requests[index].session or f"\0{index}"


def _turns(trace: Trace) -> dict[str, list[int]]:
    """For each session its requests, in order."""
    turns: dict[str, list[int]] = {}
    for index in range(len(trace.requests)):
        turns.setdefault(_session(trace, index), []).append(index)
    return turns


def _key_space(config: SchedulerConfig) -> KeySpace:
    """Names that hold inside this simulation; nothing of it outlives it."""
    return KeySpace(
        secret=bytes(32),
        model_digest=bytes(32),
        numerics_id="simulation",
        kv_dtype="simulation",
        block_size=config.block_size,
    )
