"""Times the operations of a Program as the native backend runs them.

Operations that run as one job (csrc/program/operation.h) have one time, since nothing else would be
true. Nothing is spent while no profile is on.
"""

from dataclasses import dataclass
from typing import Any

from kokuban.program.ops import Op, TakeRows
from kokuban.program.program import Program


@dataclass(frozen=True, slots=True)
class StageTime:
    """What ran between two barriers, and how long in all steps since the profile began."""

    ops: tuple[Op, ...]
    """Of the Program; none where a stage only turns the next product's input into int8."""

    quantizes: bool
    """It ends with that."""

    seconds: float

    @property
    def label(self) -> str:
        """Names of the operations, joined: the same for the same stage of every layer."""
        names = [type(op).__name__ for op in self.ops]
        return " + ".join([*names, "quantize"] if self.quantizes else names)


class Profile:
    """Sums up the time of each stage of one native program, until `end`."""

    def __init__(self, program: Program, native: Any) -> None:
        self._native = native
        head = tuple(op for op in program.head if not isinstance(op, TakeRows))
        self._ops = (program.body, head)
        native.time_stages(True)

    def times(self) -> list[StageTime]:
        """Every stage in the order in which it runs, so far."""
        return [
            StageTime(self._ops[head][begin:end], quantizes, nanoseconds * 1e-9)
            for head, begin, end, quantizes, nanoseconds in self._native.stage_times()
        ]

    def end(self) -> None:
        """Stop timing; the sums are gone."""
        self._native.time_stages(False)
