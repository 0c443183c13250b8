"""What a waiting request can begin from: a cached prefix, where restoring it is the cheaper way.

Owns: the fetches from disk of the requests that wait. Asks: `Manager` for what is cached, `Prices`
for what it is worth.
"""

from kokuban.kvcache.cached import CachedPrefix
from kokuban.kvcache.manager import Manager
from kokuban.scheduler.prices import Prices, move_s
from kokuban.scheduler.state import RequestState


class Prefixes:
    """See the module."""

    def __init__(self, manager: Manager, prices: Prices) -> None:
        self._manager = manager
        self._prices = prices

    def find(self, state: RequestState) -> CachedPrefix | None:
        """What the request can begin from now; None while it waits for the disk.

        Looked up again only if something has changed since the last time.
        """
        if state.fetch is not None and not state.fetch.done:
            return None
        version = self._manager.index_version
        if state.found is None or state.found[0] != version:
            state.found = version, self._look_up(state)
        found = state.found[1]
        below = self._manager.below
        if found.num_on_disk == 0 or below is None or state.chain is None:
            return found
        state.fetch = below.fetch(state.chain, found, state.token_ids)
        if state.fetch is None or not state.fetch.done:
            return None
        # Host memory had no room for any of it.
        state.found = None
        return self.find(state)

    def drop(self, state: RequestState) -> None:
        """Let go of what a request had brought up: it begins, or it has gone."""
        if state.fetch is not None and self._manager.below is not None:
            self._manager.below.end_fetch(state.fetch)
            state.fetch = None

    def bring_back_s(self, state: RequestState) -> float:
        """What preempting a running request will cost: the cheaper of two ways back."""
        recompute_s = self._prices.recompute_s(0, state.num_computed)
        if self._manager.below is None:
            return recompute_s
        return min(recompute_s, move_s(self._prices, self._manager.num_held(state.id)))

    def keeps(self, state: RequestState) -> bool:
        """Whether what a request has computed is worth copying down when it leaves the pool."""
        if self._manager.below is None:
            return False
        moved_s = move_s(self._prices, self._manager.num_held(state.id))
        return moved_s < self._prices.recompute_s(0, state.num_computed)

    def _look_up(self, state: RequestState) -> CachedPrefix:
        chain = None if state.request.needs_every_row else state.chain
        # What the disk could not give the first time is not asked for again.
        disk = state.fetch is None
        found = self._manager.find_cached_prefix(chain, state.token_ids, disk=disk)
        if found.num_below == 0:
            return found
        pool_only = self._manager.find_cached_prefix(chain, state.token_ids, below=False)
        gained = found.num_tokens - pool_only.num_tokens
        gained_s = self._prices.recompute_s(pool_only.num_tokens, gained)
        cost_s = self._prices.restore_s(found.num_below, found.num_on_disk)
        return found if cost_s < gained_s else pool_only
