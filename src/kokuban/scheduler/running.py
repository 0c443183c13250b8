"""The requests that hold blocks, and which of them gives way when blocks run out.

The victim is the cheapest to bring back of the least important ones. Rank is a total order that no
preemption changes, and the first by rank is never the victim while others run: so it comes to its
end, then the next one is the first, and requests cannot take blocks from each other for ever. Who
was preempted before counts for more, so that not always the same request gives way.
"""

import bisect
from collections.abc import Callable, Iterator

from kokuban.scheduler.state import RequestState


class RunningList:
    """Running requests, lowest rank first. Adding and removing are linear, in C."""

    def __init__(self) -> None:
        self._states: list[RequestState] = []

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[RequestState]:
        """Over a copy: requests may be removed meanwhile, see `RequestState.running`."""
        return iter(tuple(self._states))

    @property
    def last(self) -> RequestState:
        """The request of the highest rank: none is less important. There must be one."""
        return self._states[-1]

    def victim(self, cost: Callable[[RequestState], float]) -> RequestState:
        """The request to be preempted next. There must be one.

        Args:
            cost: of bringing a request back; among equals the last by rank gives way.
        """
        lowest = self.last.request.priority
        candidates = [state for state in self._states[1:] if state.request.priority == lowest]
        if not candidates:
            return self.last
        return min(
            reversed(candidates), key=lambda state: cost(state) * (1 + state.num_preemptions)
        )

    def add(self, state: RequestState) -> None:
        bisect.insort(self._states, state, key=_rank)

    def remove(self, state: RequestState) -> None:
        index = bisect.bisect_left(self._states, state.rank, key=_rank)
        assert self._states[index] is state, f"request {state.id} does not run"
        del self._states[index]


def _rank(state: RequestState) -> tuple[int, int]:
    return state.rank
