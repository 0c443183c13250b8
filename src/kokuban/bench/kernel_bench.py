"""Runs cases: is the kernel right, how long does it take, how far is it from what bounds it.

The bound is the roofline's: a call takes at least moved bytes / bandwidth and at least operations /
peak; the larger of the two times is the ideal one, and fraction = ideal time / time. Bandwidth and
peak are measured in each round, right before the kernel, and the fraction is the median over rounds
of the rounds' own fractions: a slow spell of the machine falls on both.
"""

import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from typing import Any, Literal

from kokuban.bench.cases_attention import attention_cases
from kokuban.bench.cases_linear import linear_cases
from kokuban.bench.cases_rows import row_cases
from kokuban.bench.kernel_case import Bound, Case, Setup, Verdict
from kokuban.bench.probes import Probes
from kokuban.bench.stats import over_rounds

FORMULAS = {
    "seconds": "median over the rounds of the typical call (a round's median), without the time of "
    "an empty call through the same Python face",
    "fraction": "median over the rounds of (ideal seconds / seconds), the limits measured in the "
    "same round",
    "ideal": "max(moved bytes / bandwidth, operations / peak)",
    "moved_bytes": "weights or KV, inputs and outputs, each byte once",
    "bandwidth": "reading memory of the size of what the calls take turns in: main memory, or the "
    "cache that holds it",
    "operations": "two for each multiply-add of the products; nothing else is counted",
    "spread": "of the seconds: (largest - smallest) / median over the rounds",
}

Limit = Literal["memory", "fma", "int8"]

ROUND_S, QUICK_ROUND_S = 0.004, 0.0
ROUNDS, QUICK_ROUNDS = 7, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """How fast a kernel is."""

    seconds: float
    spread: float
    limit: Limit
    """Which side of the roofline is the bound."""

    fraction: float
    """Of it that is reached; 1 is the bound itself."""

    bytes_per_s: float
    ops_per_s: float
    limit_per_s: float
    """Median of what was measured for the bound: bytes, or operations, a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelResult:
    """One case. Its data is not in here: it can go."""

    kernel: str
    name: str
    bound: Bound
    verdict: Verdict | None
    failure: str | None
    """What the kernel raised; it has no verdict then."""

    speed: Speed | None
    """None for a kernel that is wrong: the time of a wrong result is worth nothing."""

    @property
    def title(self) -> str:
        return f"{self.kernel} {self.name}"

    @property
    def right(self) -> bool:
        return self.verdict is not None and self.verdict.right

    def as_json(self) -> dict[str, Any]:
        """What a file holds of it. A NaN is no JSON."""
        verdict = self.verdict
        known = verdict is not None and verdict.error == verdict.error
        return {
            "kernel": self.kernel,
            "name": self.name,
            "right": self.right,
            "error": verdict.error if verdict is not None and known else None,
            "error_limit": verdict.limit if verdict is not None else None,
            "error_measure": verdict.measure if verdict is not None else None,
            "failure": self.failure,
            "bound": asdict(self.bound),
            "speed": asdict(self.speed) if self.speed is not None else None,
        }


def all_cases(setup: Setup) -> Iterator[Case]:
    """Every kernel at every size. Data lives as long as its cases are in use."""
    return chain(linear_cases(setup), attention_cases(setup), row_cases(setup))


class KernelBench:
    """Runs cases one after another.

    Args:
        rounds, round_s: how often a kernel is timed, and how long each time at least.
    """

    def __init__(self, probes: Probes, *, rounds: int, round_s: float) -> None:
        self._probes = probes
        self._rounds, self._round_s = rounds, round_s

    def run(self, cases: Iterable[Case]) -> Iterator[KernelResult]:
        """The result of each case as soon as it is there."""
        for case in cases:
            yield self.run_one(case)

    def run_one(self, case: Case) -> KernelResult:
        """Judge, then time."""
        result = partial(KernelResult, kernel=case.kernel, name=case.name, bound=case.bound)
        try:
            prepared = case.prepare()
            verdict = prepared.check()
        except (ValueError, RuntimeError, ArithmeticError) as error:
            # A kernel that refuses its input is a result, and the other kernels go on.
            failure = f"{type(error).__name__}: {error}"
            return result(verdict=None, failure=failure, speed=None)
        if not verdict.right:
            return result(verdict=verdict, failure=None, speed=None)
        speed = self._time(case.bound, prepared.run, prepared.overhead)
        return result(verdict=verdict, failure=None, speed=speed)

    def _time(
        self, bound: Bound, run: Callable[[], object], overhead: Callable[[], object]
    ) -> Speed:
        seconds: list[float] = []
        memory: list[float] = []
        peaks: list[float] = []
        for _ in range(self._rounds):
            memory.append(self._probes.bytes_per_s(bound.working_set_bytes, bound.threads))
            if bound.ops:
                peaks.append(self._probes.ops_per_s(bound.arithmetic, bound.threads))
            empty_s, taken_s = self._typical_s(overhead), self._typical_s(run)
            # What is left of a call so short that it drowns in its face is not below a tenth.
            seconds.append(max(taken_s - empty_s, taken_s / 10))
        return speed_of(bound, seconds, memory, peaks)

    def _typical_s(self, call: Callable[[], object]) -> float:
        """Median of the calls of one round, at least three after one that warms up."""
        call()
        times: list[float] = []
        start = time.perf_counter()
        while len(times) < 3 or time.perf_counter() - start < self._round_s:
            begin = time.perf_counter()
            call()
            times.append(time.perf_counter() - begin)
        return statistics.median(times)


def speed_of(
    bound: Bound, seconds: list[float], memory_per_s: list[float], peak_per_s: list[float]
) -> Speed:
    """The figures of a case, from what each round measured.

    Args:
        peak_per_s: empty where no operations are counted.
    """
    memory_s = [bound.moved_bytes / rate for rate in memory_per_s]
    compute_s = [bound.ops / rate for rate in peak_per_s] or [0.0] * len(memory_s)
    fractions = [
        max(pair) / taken for *pair, taken in zip(memory_s, compute_s, seconds, strict=True)
    ]
    by_memory = statistics.median(memory_s) >= statistics.median(compute_s)
    time_s = over_rounds(seconds)
    return Speed(
        seconds=time_s.median,
        spread=time_s.spread,
        limit="memory" if by_memory else bound.arithmetic,
        fraction=statistics.median(fractions),
        bytes_per_s=bound.moved_bytes / time_s.median,
        ops_per_s=bound.ops / time_s.median,
        limit_per_s=statistics.median(memory_per_s if by_memory else peak_per_s),
    )
