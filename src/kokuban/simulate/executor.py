"""A runner that computes nothing: steps take the time that the cost model says."""

from collections.abc import Callable

from kokuban.core.request import RequestId
from kokuban.core.step import ChunkOutput, SampledToken, StepPlan, StepResult
from kokuban.plan.cost import CostModel
from kokuban.program.cost import ChunkShape, summarize
from kokuban.program.program import KvSpec
from kokuban.simulate.meter import Meter

Script = Callable[[RequestId, int], int]
"""The token that a request says: its id, and how many tokens it has said before."""


class SimulatedClock:
    """A clock that stands still until it is told to advance."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def now(self) -> float:
        return self._now_s

    def advance(self, seconds: float) -> None:
        """Let time pass; never backwards."""
        assert seconds >= 0, f"time runs backwards by {-seconds} s"
        self._now_s += seconds

    def advance_to(self, now_s: float) -> None:
        """Let time pass up to then, if that is not over yet."""
        self._now_s = max(self._now_s, now_s)


class SimulatedExecutor:
    """The `Executor` of a simulation: advances the clock, says what the script says.

    Args:
        block_bytes: K and V of one block of the pool.
        num_held: blocks of the pool that somebody holds.
        on_plan: told of each step before it runs.
    """

    depth = 0

    def __init__(
        self,
        model: CostModel,
        kv: KvSpec,
        *,
        block_size: int,
        block_bytes: int,
        clock: SimulatedClock,
        script: Script,
        meter: Meter,
        num_held: Callable[[], int],
        on_plan: Callable[[StepPlan], None] | None = None,
    ) -> None:
        self._model = model
        self._kv = kv
        self._block_size = block_size
        self._block_bytes = block_bytes
        self._clock = clock
        self._script = script
        self._meter = meter
        self._num_held = num_held
        self._on_plan = on_plan
        self._plan: StepPlan | None = None
        self._num_said: dict[RequestId, int] = {}
        self._empty_slots: dict[RequestId, int] = {}

    def submit(self, plan: StepPlan) -> None:
        assert self._plan is None, "the step before has not been collected"
        self._plan = plan
        if self._on_plan is not None:
            self._on_plan(plan)
        for request_id in plan.ended:
            del self._num_said[request_id]
            del self._empty_slots[request_id]
        for admission in plan.admitted:
            self._num_said[admission.request.id] = len(admission.output_token_ids)
            self._empty_slots[admission.request.id] = 0

    def collect(self) -> StepResult:
        plan = self._plan
        assert plan is not None, "no step was submitted"
        self._plan = None
        for chunk in plan.chunks:
            end = chunk.start + len(chunk.token_ids)
            self._empty_slots[chunk.request_id] = -end % self._block_size
        step_s = self.step_s(plan)
        self._clock.advance(step_s)
        self._meter.note_step(
            step_s,
            num_tokens=plan.num_tokens,
            num_running=len(self._num_said),
            held_slots=self._num_held() * self._block_size,
            empty_slots=sum(self._empty_slots.values()) * len(self._kv.groups),
        )
        outputs = {
            chunk.request_id: self._say(chunk.request_id) for chunk in plan.chunks if chunk.samples
        }
        return StepResult(plan.step, outputs)

    def close(self) -> None:
        """There is nothing to give back."""

    def step_s(self, plan: StepPlan) -> float:
        """What the plan takes: its chunks, and the blocks that it moves through host memory."""
        shapes = [
            ChunkShape(chunk.start, len(chunk.token_ids), int(chunk.samples))
            for chunk in plan.chunks
        ]
        num_moved = len(plan.moves)
        return self._model.step_s(summarize(shapes, self._kv)) + self._model.restore_s(
            num_moved * self._block_bytes, "ram"
        )

    def _say(self, request_id: RequestId) -> ChunkOutput:
        place = self._num_said[request_id]
        self._num_said[request_id] += 1
        return ChunkOutput((SampledToken(self._script(request_id, place)),))
