"""What pages are measured against: one contiguous region for each request, reserved when it begins.

Three ways to guess how long an answer becomes, as in Kwon et al., "Efficient Memory Management for
Large Language Model Serving with PagedAttention" (SOSP 2023), section 6.1:

    maximum        prompt and answer fill the context, for all one knows
    power-of-two   the prompt, and the answer's length rounded up to a power of two
    oracle         the prompt and the answer, exactly

Regions are placed first fit. Requests begin in the order of their arrival, as soon as the first of
them finds a region; steps, budgets and times are those of the engine: prompts in chunks behind the
requests that decode, priced by the same cost model. Nothing is ever preempted, since all that a
request will need is there before it begins.
"""

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from kokuban.core.config import SchedulerConfig
from kokuban.plan.cost import CostModel
from kokuban.program.cost import ChunkShape, summarize
from kokuban.program.program import KvSpec
from kokuban.simulate.meter import Latencies, Meter, Percentiles
from kokuban.simulate.trace import Trace, TraceRequest

Reservation = Literal["maximum", "power-of-two", "oracle"]
RESERVATIONS: tuple[Reservation, ...] = get_args(Reservation)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContiguousResult:
    """What came of it. Shares are from 0 to 1, times are simulated seconds."""

    reservation: Reservation
    num_requests: int
    num_refused: int
    """Requests whose region is larger than all memory."""

    duration_s: float
    waste: float
    """Of the slots reserved, those that hold no token."""

    unusable: float
    """Share of all slots that are free while a request waits because no gap is long enough,
    averaged over those times; 0 if none ever waited."""

    mean_running: float
    max_running: int
    ttft_s: Percentiles
    tpot_s: Percentiles


def replay_contiguous(
    trace: Trace,
    reservation: Reservation,
    *,
    model: CostModel,
    kv: KvSpec,
    num_slots: int,
    max_context_tokens: int,
    scheduler: SchedulerConfig,
) -> ContiguousResult:
    """Run a trace with one region of token slots for each request.

    Args:
        num_slots: tokens that the KV memory holds in all.
        max_context_tokens: what "maximum" reserves; longer requests are refused.
    """

    def length(request: TraceRequest) -> int:
        return reserved_tokens(request, reservation, max_context_tokens)

    fitting = [
        request
        for request in trace.requests
        if request.prompt_tokens + request.output_tokens <= max_context_tokens
        and length(request) <= num_slots
    ]
    run = _Run(fitting, length, model=model, kv=kv, num_slots=num_slots, scheduler=scheduler)
    run.run()
    return ContiguousResult(
        reservation=reservation,
        num_requests=len(fitting),
        num_refused=len(trace.requests) - len(fitting),
        duration_s=run.now_s,
        waste=run.meter.waste,
        unusable=run.unusable,
        mean_running=run.meter.mean_running,
        max_running=run.meter.max_running,
        ttft_s=run.latencies.ttft,
        tpot_s=run.latencies.tpot,
    )


def reserved_tokens(
    request: TraceRequest, reservation: Reservation, max_context_tokens: int
) -> int:
    """Slots of a request's region. The token that is sampled last never needs one."""
    if reservation == "maximum":
        return max_context_tokens
    if reservation == "oracle":
        return request.prompt_tokens + request.output_tokens - 1
    return request.prompt_tokens + (1 << (request.output_tokens - 1).bit_length())


class Regions:
    """Slots 0 to N - 1, handed out in contiguous regions, first fit. Linear in the gaps."""

    def __init__(self, num_slots: int) -> None:
        self._gaps = [(0, num_slots)]
        self.num_free = num_slots

    def take(self, length: int) -> int | None:
        """The first slot of a region of this length, or None if no gap is long enough."""
        for index, (start, size) in enumerate(self._gaps):
            if size >= length:
                self._gaps[index : index + 1] = [(start + length, size - length)][: size > length]
                self.num_free -= length
                return start
        return None

    def give_back(self, start: int, length: int) -> None:
        """Free a region that was taken."""
        gaps: list[tuple[int, int]] = []
        for gap in sorted((*self._gaps, (start, length))):
            if gaps and sum(gaps[-1]) == gap[0]:
                gaps[-1] = gaps[-1][0], gaps[-1][1] + gap[1]
            else:
                gaps.append(gap)
        self._gaps = gaps
        self.num_free += length


@dataclass(slots=True)
class _Running:
    request: TraceRequest
    start: int
    """First slot of the region."""

    length: int
    """Slots of the region."""

    num_computed: int = 0
    num_output: int = 0
    first_s: float = 0.0

    @property
    def num_left(self) -> int:
        """Tokens that can be computed now: the rest of the prompt, or the one sampled last."""
        return max(1, self.request.prompt_tokens - self.num_computed)


class _Run:
    def __init__(
        self,
        requests: list[TraceRequest],
        length: Callable[[TraceRequest], int],
        *,
        model: CostModel,
        kv: KvSpec,
        num_slots: int,
        scheduler: SchedulerConfig,
    ) -> None:
        self.now_s = 0.0
        self.meter = Meter()
        self.latencies = Latencies()
        self._length = length
        self._model, self._kv, self._scheduler = model, kv, scheduler
        self._num_slots = num_slots
        self._regions = Regions(num_slots)
        self._arrivals = [(r.arrival_s, place, r) for place, r in enumerate(requests)]
        self._waiting: deque[TraceRequest] = deque()
        self._running: list[_Running] = []
        self._blocked_s = 0.0
        self._unusable_slot_s = 0.0
        heapq.heapify(self._arrivals)

    @property
    def unusable(self) -> float:
        if not self._blocked_s:
            return 0.0
        return self._unusable_slot_s / self._blocked_s / self._num_slots

    def run(self) -> None:
        while self._arrivals or self._waiting or self._running:
            while self._arrivals and self._arrivals[0][0] <= self.now_s:
                self._waiting.append(heapq.heappop(self._arrivals)[-1])
            blocked = self._begin()
            if self._running:
                self._step(blocked)
            else:
                self.now_s = self._arrivals[0][0]

    def _begin(self) -> bool:
        """Give regions to those that wait; returns whether one waits for want of a region."""
        while self._waiting and len(self._running) < self._scheduler.max_running_requests:
            length = self._length(self._waiting[0])
            start = self._regions.take(length)
            if start is None:
                return True
            self._running.append(_Running(self._waiting.popleft(), start, length))
        return False

    def _step(self, blocked: bool) -> None:
        """Compute one token for each that decodes, and chunks of prompts with what is left."""
        budget = self._scheduler.token_budget
        prefill = self._scheduler.max_prefill_tokens or budget
        chunks: list[tuple[_Running, int]] = []
        for decoding in (True, False):
            for each in self._running:
                if (each.num_output > 0) is decoding:
                    size = min(each.num_left, budget, budget if decoding else prefill)
                    if size:
                        chunks.append((each, size))
                        budget -= size
                        prefill -= 0 if decoding else size
        shapes = [
            ChunkShape(each.num_computed, size, int(self._samples(each, size)))
            for each, size in chunks
        ]
        step_s = self._model.step_s(summarize(shapes, self._kv))
        self.now_s += step_s
        if blocked:
            self._blocked_s += step_s
            self._unusable_slot_s += step_s * self._regions.num_free
        for (each, size), shape in zip(chunks, shapes, strict=True):
            self._advance(each, size, shape.num_rows == 1)
        self._note(step_s, sum(size for _, size in chunks))
        self._end()

    def _samples(self, each: _Running, size: int) -> bool:
        return each.num_computed + size >= each.request.prompt_tokens

    def _advance(self, each: _Running, size: int, samples: bool) -> None:
        each.num_computed += size
        if samples:
            each.num_output += 1
            each.first_s = each.first_s or self.now_s

    def _note(self, step_s: float, num_tokens: int) -> None:
        held = sum(each.length for each in self._running)
        self.meter.note_step(
            step_s,
            num_tokens=num_tokens,
            num_running=len(self._running),
            held_slots=held,
            empty_slots=held - sum(each.num_computed for each in self._running),
        )

    def _end(self) -> None:
        ended = [each for each in self._running if each.num_output == each.request.output_tokens]
        for each in ended:
            self._running.remove(each)
            self._regions.give_back(each.start, each.length)
            self.latencies.note(
                arrival_s=each.request.arrival_s,
                first_s=each.first_s,
                last_s=self.now_s,
                num_output=each.num_output,
            )
