"""Decides the order of the requests that wait: priority, then who was preempted, then fair shares.

Owns: the waiting requests. Asks: `TenantShares` for who is owed most. The scheduler decides which
of the candidates fits; the queue never looks at blocks.

Nothing here is linear in the number of waiting requests: a step looks at the candidates in turn
and stops after a few, however many thousands wait.
"""

import bisect
import heapq
from collections import OrderedDict
from collections.abc import Iterator, Sequence, Set
from itertools import islice

from kokuban.core.request import RequestId
from kokuban.scheduler.fairness import TenantShares
from kokuban.scheduler.state import RequestState

LOOKAHEAD = 32
"""Most requests that a step tries in vain, and most that it tries of one tenant behind its first.
Each try costs microseconds and a look into the prefix index."""

_Key = tuple[int, int, str]
"""Counter of a tenant, index of its first request, the tenant: the order of service."""

_MIN_STALE = 64
"""A heap is rebuilt when stale entries outnumber the live ones, and this many besides."""


class WaitingQueue:
    """Requests that hold no blocks, in order of service.

    Every method costs O(log waiting), a step of `candidates` included.
    """

    def __init__(self, shares: TenantShares) -> None:
        self._shares = shares
        self._levels: dict[int, _Level] = {}
        self._priorities: list[int] = []
        self._waiting: dict[RequestId, RequestState] = {}
        self._deadlines: list[tuple[float, int, RequestId]] = []
        self._held: set[RequestId] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request_id: RequestId) -> bool:
        return request_id in self._waiting

    def push(self, state: RequestState) -> None:
        """Append a new request behind those of its tenant."""
        self._note(state)
        self._level(state.request.priority).push(state)

    def push_front(self, state: RequestState) -> None:
        """Put a preempted request before all new ones of its priority; it has no deadline now."""
        self._waiting[state.id] = state
        self._level(state.request.priority).push_front(state)

    def hold(self, state: RequestState) -> None:
        """Keep a request, new or waiting, out of the line: it waits for another one."""
        level = self._level(state.request.priority)
        if state.id in self._waiting:
            level.remove(state)
        else:
            self._note(state)
        level.hold(state)
        self._held.add(state.id)

    def put_first(self, states: Sequence[RequestState]) -> None:
        """Put held requests, of one tenant and priority, before all others of the tenant.

        Those that are in the line already keep their place.
        """
        held = [state for state in states if state.id in self._held]
        self._held.difference_update(state.id for state in held)
        for state in reversed(held):
            self._level(state.request.priority).put_first(state)

    @property
    def held_ids(self) -> Set[RequestId]:
        """Requests that wait outside of the line."""
        return self._held

    def remove(self, state: RequestState) -> None:
        """Take a request out: it was admitted, cancelled or refused."""
        del self._waiting[state.id]
        self._held.discard(state.id)
        priority = state.request.priority
        level = self._levels[priority]
        level.remove(state)
        if not level:
            del self._levels[priority]
            self._priorities.remove(priority)

    def candidates(self) -> Iterator[RequestState]:
        """Requests in order of service. The caller may remove the one it was given, and no other.

        It may stop at any time. Tenants' counters are read as the walk comes to them, so that one
        who was just charged falls back behind the others.
        """
        for priority in tuple(self._priorities):
            yield from self._levels[priority].candidates()

    def take_expired(self, now_s: float) -> list[RequestState]:
        """Requests whose deadline passed before they were begun; the caller must remove them.

        Each is returned once.
        """
        expired = []
        while self._deadlines and self._deadlines[0][0] < now_s:
            _, index, request_id = heapq.heappop(self._deadlines)
            state = self._waiting.get(request_id)
            if state is not None and state.index == index and state.num_preemptions == 0:
                expired.append(state)
        return expired

    def check(self) -> None:
        """Assert every invariant. Linear; for tests."""
        listed = [state for level in self._levels.values() for state in level]
        assert len(listed) == len(self._waiting), "a waiting request is listed twice or not at all"
        assert {state.id for state in listed} == set(self._waiting), "levels and index disagree"
        assert not any(state.running for state in listed), "a running request waits"
        assert not any(state.num_computed for state in listed), "a request without blocks computed"
        assert self._priorities == sorted(self._levels), "priorities are out of order"
        held = {state.id for level in self._levels.values() for state in level.held}
        assert held == self._held, "who is held is not agreed upon"

    def _note(self, state: RequestState) -> None:
        self._waiting[state.id] = state
        if state.request.deadline_s is not None:
            heapq.heappush(self._deadlines, (state.request.deadline_s, state.index, state.id))
            self._drop_stale_deadlines()

    def _level(self, priority: int) -> "_Level":
        if priority not in self._levels:
            self._levels[priority] = _Level(self._shares)
            bisect.insort(self._priorities, priority)
        return self._levels[priority]

    def _drop_stale_deadlines(self) -> None:
        if len(self._deadlines) > 2 * len(self._waiting) + _MIN_STALE:
            self._deadlines = [
                (deadline_s, index, request_id)
                for deadline_s, index, request_id in self._deadlines
                if request_id in self._waiting and self._waiting[request_id].index == index
            ]
            heapq.heapify(self._deadlines)


class _Level:
    """The waiting requests of one priority.

    A tenant with new requests here has one live entry in the heap, or is parked: the walk of
    `candidates` has passed it. Counters rise and requests are cancelled without the heap being
    told, so an entry is compared with the truth when it comes to the top.
    """

    def __init__(self, shares: TenantShares) -> None:
        self._shares = shares
        self._preempted: list[RequestState] = []
        self._tenants: dict[str, OrderedDict[RequestId, RequestState]] = {}
        self._heap: list[_Key] = []
        self._live: dict[str, _Key] = {}
        self._parked: list[str] = []
        self._held: dict[RequestId, RequestState] = {}

    def __bool__(self) -> bool:
        return bool(self._preempted or self._tenants or self._held)

    def __iter__(self) -> Iterator[RequestState]:
        yield from self._preempted
        for queue in self._tenants.values():
            yield from queue.values()
        yield from self._held.values()

    @property
    def held(self) -> tuple[RequestState, ...]:
        """Those outside of the line."""
        return tuple(self._held.values())

    def push(self, state: RequestState) -> None:
        self._unpark()
        tenant = state.request.tenant
        if tenant in self._tenants:
            self._tenants[tenant][state.id] = state
            return
        first = self._peek()
        self._shares.lift(tenant, 0 if first is None else first[0])
        self._tenants[tenant] = OrderedDict({state.id: state})
        self._enter(tenant)

    def push_front(self, state: RequestState) -> None:
        bisect.insort(self._preempted, state, key=_rank)

    def hold(self, state: RequestState) -> None:
        self._held[state.id] = state

    def put_first(self, state: RequestState) -> None:
        """No lift: the tenant has been waiting with this request all the time."""
        del self._held[state.id]
        self._unpark()
        tenant = state.request.tenant
        queue = self._tenants.setdefault(tenant, OrderedDict())
        queue[state.id] = state
        queue.move_to_end(state.id, last=False)
        if self._live.get(tenant) != self._key(tenant):
            self._enter(tenant)

    def remove(self, state: RequestState) -> None:
        if self._held.pop(state.id, None) is not None:
            return
        if state.num_preemptions:
            self._preempted.remove(state)
            return
        tenant = state.request.tenant
        del self._tenants[tenant][state.id]
        if not self._tenants[tenant]:
            del self._tenants[tenant]
            self._live.pop(tenant, None)

    def candidates(self) -> Iterator[RequestState]:
        """See `WaitingQueue.candidates`.

        First every tenant's first request, so that one tenant's long queue hides nobody; then
        those behind them.
        """
        yield from tuple(self._preempted)
        self._unpark()
        if (least := self._peek()) is not None:
            self._shares.raise_floor(least[0])
        while (key := self._peek()) is not None:
            heapq.heappop(self._heap)
            tenant = key[-1]
            del self._live[tenant]
            self._parked.append(tenant)
            first = self._first(tenant)
            yield first
            if tenant in self._tenants and self._first(tenant) is not first:
                # It was admitted: the tenant's next request takes its place in the order.
                self._parked.pop()
                self._enter(tenant)
        for tenant in tuple(self._parked):
            if tenant in self._tenants:
                yield from tuple(islice(self._tenants[tenant].values(), 1, LOOKAHEAD))

    def _first(self, tenant: str) -> RequestState:
        return next(iter(self._tenants[tenant].values()))

    def _key(self, tenant: str) -> _Key:
        return self._shares.served(tenant), self._first(tenant).index, tenant

    def _enter(self, tenant: str) -> None:
        key = self._live[tenant] = self._key(tenant)
        heapq.heappush(self._heap, key)
        if len(self._heap) > 2 * len(self._live) + _MIN_STALE:
            self._heap = sorted(self._live.values())

    def _peek(self) -> _Key | None:
        """The entry of the tenant to be served next, brought up to date, or None."""
        while self._heap:
            key = self._heap[0]
            tenant = key[-1]
            if self._live.get(tenant) != key:
                heapq.heappop(self._heap)
            elif (actual := self._key(tenant)) != key:
                self._live[tenant] = actual
                heapq.heapreplace(self._heap, actual)
            else:
                return key
        return None

    def _unpark(self) -> None:
        for tenant in self._parked:
            if tenant in self._tenants and tenant not in self._live:
                self._enter(tenant)
        self._parked.clear()


def _rank(state: RequestState) -> tuple[int, int]:
    return state.rank
