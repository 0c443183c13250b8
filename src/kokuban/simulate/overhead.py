"""Measures what the engine's own bookkeeping takes: the real loop around an executor that does
nothing. What arrays, sampler and text take is not in it.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from kokuban.core.config import SchedulerConfig
from kokuban.core.request import Request, RequestId
from kokuban.core.sampling_params import SamplingParams
from kokuban.core.step import ChunkOutput, SampledToken, StepPlan, StepResult
from kokuban.engine.core import EngineCore
from kokuban.kvcache.manager import Manager
from kokuban.kvcache.pool import BlockPool
from kokuban.observe.clock import SystemClock
from kokuban.scheduler.scheduler import Scheduler

NUM_ROWS = 33
NUM_TOKENS = 2048
ROUNDS = 200

Timer = Callable[[], float]
"""Seconds since some moment."""


class Overheads(NamedTuple):
    """Seconds: of a step, of each of its sampled rows, of each of its tokens."""

    step_s: float
    row_s: float
    token_s: float


def measure_overheads(rounds: int = ROUNDS, timer: Timer = time.perf_counter) -> Overheads:
    """Typical times of steps with one row, with many rows, and with one long prompt."""
    one = _typical_s(1, rounds, timer)
    many = _typical_s(NUM_ROWS, rounds, timer)
    row_s = max(0.0, (many - one) / (NUM_ROWS - 1))
    prompt = statistics.median(_prompt_s(timer) for _ in range(max(3, rounds // 20)))
    return Overheads(max(0.0, one - row_s), row_s, max(0.0, (prompt - one) / NUM_TOKENS))


class _Nothing:
    """An executor whose model always says 0."""

    depth = 0

    def __init__(self) -> None:
        self._plan: StepPlan | None = None

    def submit(self, plan: StepPlan) -> None:
        self._plan = plan

    def collect(self) -> StepResult:
        plan = self._plan
        assert plan is not None, "no step was submitted"
        said = ChunkOutput((SampledToken(0),))
        return StepResult(
            plan.step, {chunk.request_id: said for chunk in plan.chunks if chunk.samples}
        )

    def close(self) -> None:
        """There is nothing to give back."""


def _typical_s(num_rows: int, rounds: int, timer: Timer) -> float:
    """Lower quartile of steps in which each of some requests gets one token."""
    core = _core([(16, rounds + 2)] * num_rows)
    core.step()
    times = []
    for _ in range(rounds):
        start = timer()
        core.step()
        times.append(timer() - start)
    return statistics.quantiles(times, n=4)[0]


def _prompt_s(timer: Timer) -> float:
    core = _core([(NUM_TOKENS, 2)])
    start = timer()
    core.step()
    return timer() - start


def _core(requests: Sequence[tuple[int, int]]) -> EngineCore:
    """An engine with these prompts, in tokens, and the lengths of their answers."""
    config = SchedulerConfig(token_budget=max(NUM_TOKENS, 16 * NUM_ROWS))
    num_blocks = sum(-(-(prompt + output) // config.block_size) for prompt, output in requests)
    manager = Manager(BlockPool(num_blocks + len(requests)), block_size=config.block_size)
    scheduler = Scheduler(config, manager, max_context_tokens=1 << 20)
    core = EngineCore(scheduler, manager, _Nothing(), SystemClock())
    for index, (prompt, output) in enumerate(requests):
        params = SamplingParams(temperature=0.0, max_tokens=output, ignore_eos=True)
        core.add([Request(id=RequestId(str(index)), prompt_token_ids=(1,) * prompt, params=params)])
    return core
