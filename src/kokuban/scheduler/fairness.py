"""Decides which tenant is served next: the one that has had the fewest tokens.

Source: Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024), algorithm VTC. Each
tenant has a counter of the tokens it was served, weighted; the least counter goes first. A tenant
that comes back from idle is lifted to the counters of those that waited, so that idling saves up
nothing.
"""

from collections import OrderedDict

INPUT_WEIGHT = 1
OUTPUT_WEIGHT = 2
"""An output token costs a step of its own, an input token a share of one: the paper's weights."""

MAX_IDLE_TENANTS = 1024
"""Tenants remembered while they have no request. One that is forgotten begins at the floor."""


class TenantShares:
    """Virtual token counters. Every method takes constant time, and no counter ever falls.

    A tenant is known from its first `arrive` on; with no request in the engine it may be forgotten.
    """

    def __init__(self) -> None:
        self._served: dict[str, int] = {}
        self._num_requests: dict[str, int] = {}
        self._idle: OrderedDict[str, None] = OrderedDict()
        self._floor = 0

    @property
    def num_known(self) -> int:
        """Tenants that have a counter."""
        return len(self._served)

    def served(self, tenant: str) -> int:
        """Weighted tokens of the tenant so far, lifts included."""
        return self._served.get(tenant, self._floor)

    def arrive(self, tenant: str) -> None:
        """One more request of the tenant is in the engine, waiting or running."""
        self._served.setdefault(tenant, self._floor)
        self._idle.pop(tenant, None)
        self._num_requests[tenant] = self._num_requests.get(tenant, 0) + 1

    def leave(self, tenant: str) -> None:
        """One request of the tenant has left the engine, for whatever reason."""
        self._num_requests[tenant] -= 1
        if self._num_requests[tenant]:
            return
        del self._num_requests[tenant]
        self._idle[tenant] = None
        if len(self._idle) > MAX_IDLE_TENANTS:
            forgotten, _ = self._idle.popitem(last=False)
            del self._served[forgotten]

    def lift(self, tenant: str, least: int) -> None:
        """Begin to wait, after waiting for nothing: not with less than those that waited already.

        Args:
            tenant: one that has arrived.
            least: the least counter of the tenants that wait, or 0 if none does; the floor, what
                the least served one had when somebody last was chosen, counts as well.
        """
        self._served[tenant] = max(self._served[tenant], self._floor, least)

    def charge(self, tenant: str, *, input_tokens: int = 0, output_tokens: int = 0) -> None:
        """Count tokens that a tenant with a request in the engine was served."""
        self._served[tenant] += INPUT_WEIGHT * input_tokens + OUTPUT_WEIGHT * output_tokens

    def raise_floor(self, least: int) -> None:
        """Note the least counter of the tenants that wait, when somebody is about to be chosen."""
        self._floor = max(self._floor, least)
