"""The requests that hold blocks, and which of them gives way when blocks run out.

The victim is always the last one by rank: the least important, and among equals the one that came
last, which usually has least to compute again. Rank is a total order that no preemption changes.
So the first request is never preempted and comes to its end, then the next one is the first:
requests cannot take blocks from each other for ever.
"""

import bisect
from collections.abc import Iterator

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
    def victim(self) -> RequestState:
        """The request to be preempted next. There must be one."""
        return self._states[-1]

    def add(self, state: RequestState) -> None:
        bisect.insort(self._states, state, key=_rank)

    def remove(self, state: RequestState) -> None:
        index = bisect.bisect_left(self._states, state.rank, key=_rank)
        assert self._states[index] is state, f"request {state.id} does not run"
        del self._states[index]


def _rank(state: RequestState) -> tuple[int, int]:
    return state.rank
