"""How long tools take, learned from the pauses of each tenant's sessions."""

from collections import OrderedDict, deque
from collections.abc import Sequence

UNKNOWN_S = 5.0
"""What a tool is expected to take of which nothing is known."""

_KEPT = 32
_MAX_TOOLS = 1024


class Durations:
    """For each set of tools that ran together the last pauses, in seconds.

    Tenants learn apart: how long a tool of one takes is nothing that another may find out.
    """

    def __init__(self) -> None:
        self._seen: OrderedDict[tuple[str, tuple[str, ...]], deque[float]] = OrderedDict()

    def learn(self, tenant: str, tools: Sequence[str], duration_s: float) -> None:
        """A pause in which these tools ran has ended."""
        key = tenant, tuple(tools)
        self._seen.setdefault(key, deque(maxlen=_KEPT)).append(max(0.0, duration_s))
        self._seen.move_to_end(key)
        if len(self._seen) > _MAX_TOOLS:
            self._seen.popitem(last=False)

    def expected_s(self, tenant: str, tools: Sequence[str]) -> float:
        """The median of the last pauses with these tools.

        Tools that have not run together before take as long as the slowest of them alone; UNKNOWN_S
        if one of them is new.
        """
        from statistics import median  # A hundredth of a start, which has no pauses yet.

        if (known := self._seen.get((tenant, tuple(tools)))) is not None:
            return median(known)
        alone = [self._seen.get((tenant, (tool,))) for tool in tools]
        if not alone or None in alone:
            return UNKNOWN_S
        return max(median(known) for known in alone if known is not None)
