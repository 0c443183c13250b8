"""What the engine asks of whoever computes a step."""

from typing import Protocol

from kokuban.core.step import StepPlan, StepResult


class Executor(Protocol):
    """Computes the steps of one model, in the order in which they are submitted.

    `submit` may return before the step is computed; `collect` waits for the oldest one. `depth` is
    how many steps may be submitted and not collected while the next is planned: 0 on a CPU, where
    planning early only takes a core from the step that runs.
    """

    depth: int

    def submit(self, plan: StepPlan) -> None:
        """Begin a step. Plans arrive in order; what they name as ended has its row dropped."""
        ...

    def collect(self) -> StepResult:
        """The result of the oldest step that was submitted and not collected yet."""
        ...

    def close(self) -> None:
        """Give back threads and memory."""
        ...
