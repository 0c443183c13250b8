"""How long a step takes on a machine, from what its operations cost: planning formulas F1 to F4."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from kokuban.program.cost import OpCost


@dataclass(frozen=True, slots=True)
class Machine:
    """Two numbers and how much of them is reached."""

    flops_per_s: float
    """Peak for the type in use, two for each multiply-add."""

    bytes_per_s: float
    """Memory bandwidth."""

    compute_efficiency: float = 1.0
    memory_efficiency: float = 1.0

    @property
    def ridge(self) -> float:
        """FLOPs a byte above which a step is bound by compute."""
        return self.flops_per_s / self.bytes_per_s

    def compute_s(self, flops: int) -> float:
        """Seconds for these FLOPs, at the efficiency reached."""
        return flops / (self.compute_efficiency * self.flops_per_s)

    def memory_s(self, num_bytes: int) -> float:
        """Seconds for these bytes, at the efficiency reached."""
        return num_bytes / (self.memory_efficiency * self.bytes_per_s)


@dataclass(frozen=True, slots=True)
class StepTime:
    """Three readings of one step; lower_s <= seconds <= upper_s."""

    seconds: float
    """Operation by operation, the slower of its two times."""

    lower_s: float
    """All compute beside all memory traffic."""

    upper_s: float
    """All compute after all memory traffic."""

    bound: Literal["compute", "memory"]
    """Which of the two is longer over the whole step."""


def step_time(costs: Iterable[OpCost], machine: Machine) -> StepTime:
    """The time of a step without overheads of launch, scheduling and sampling."""
    times = [(machine.compute_s(c.flops), machine.memory_s(c.memory_bytes)) for c in costs]
    compute = sum(time for time, _ in times)
    memory = sum(time for _, time in times)
    return StepTime(
        seconds=sum(max(pair) for pair in times),
        lower_s=max(compute, memory),
        upper_s=compute + memory,
        bound="compute" if compute > memory else "memory",
    )
