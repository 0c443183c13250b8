"""How long tools take, learned from the pauses of all sessions."""

import statistics
from collections import OrderedDict, deque
from collections.abc import Sequence

UNKNOWN_S = 5.0
"""What a tool is expected to take of which nothing is known."""

_KEPT = 32
_MAX_TOOLS = 1024


class Durations:
    """For each set of tools that ran together the last pauses, in seconds."""

    def __init__(self) -> None:
        self._seen: OrderedDict[tuple[str, ...], deque[float]] = OrderedDict()

    def learn(self, tools: Sequence[str], duration_s: float) -> None:
        """A pause in which these tools ran has ended."""
        key = tuple(tools)
        self._seen.setdefault(key, deque(maxlen=_KEPT)).append(max(0.0, duration_s))
        self._seen.move_to_end(key)
        if len(self._seen) > _MAX_TOOLS:
            self._seen.popitem(last=False)

    def expected_s(self, tools: Sequence[str]) -> float:
        """The median of the last pauses with these tools.

        Tools that have not run together before take as long as the slowest of them alone; UNKNOWN_S
        if one of them is new.
        """
        if (known := self._seen.get(tuple(tools))) is not None:
            return statistics.median(known)
        alone = [self._seen.get((tool,)) for tool in tools]
        if not alone or None in alone:
            return UNKNOWN_S
        return max(statistics.median(known) for known in alone if known is not None)
