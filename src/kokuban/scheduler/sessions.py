"""Conversations between their requests: what becomes of their KV while a tool runs.

A pause says how long nobody will need it. Three things can be done meanwhile, and the cheapest is:

    stay       the blocks are pinned in the pool; others lose a share of it for the time
    go down    they are copied to host memory and disk, and handed out first
    be dropped the same without a copy; the conversation is computed again

What went down is brought up shortly before the pause is expected to end. Durations that are not
given are learned for each tool.

Owns: the sessions, and the times at which one must come back. Asks: `Manager`, `Keeper`, `Prices`.
"""

import heapq
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kokuban.core.request import RequestId
from kokuban.core.session import Origin, PausePrices, Place, SessionStatus
from kokuban.kvcache.contents import BlockContent
from kokuban.kvcache.keep import Kept
from kokuban.kvcache.manager import Manager
from kokuban.kvcache.prefix import KeyChain
from kokuban.kvcache.tiers import Fetch
from kokuban.scheduler.durations import Durations
from kokuban.scheduler.pins import Pins
from kokuban.scheduler.prices import Prices, move_s
from kokuban.scheduler.state import RequestState

MAX_SESSIONS = 4096
MAX_TOKENS = 2**24
"""Of all sessions that are remembered; the least recently used are forgotten first."""

LEAD_S = 0.25
"""How long before the expected end of a pause its KV is back, beside the time that it takes."""

MAX_GRACE_S = 60.0
"""Most seconds that a session stays pinned beyond the expected end of its pause."""

MAX_RETRY_S = 4.0
"""Most seconds between two tries to bring back a session that finds no room."""

MAX_FETCHES = 2
"""Sessions that may wait for the disk at a time; requests that wait come first."""


_MIN_STALE = 64
"""The heap of due times is rebuilt when stale entries outnumber sessions, and this many besides."""


class SessionKey(NamedTuple):
    tenant: str
    id: str


@dataclass(slots=True, eq=False)
class _Session:
    key: SessionKey
    chain: KeyChain | None = None
    token_ids: Sequence[int] = ()
    num_tokens: int = 0
    """Tokens of them whose KV was computed."""

    kept: Kept = field(default_factory=lambda: Kept(()))
    num_active: int = 0
    paused_s: float | None = None
    expected_s: float = 0.0
    tools: tuple[str, ...] = ()
    place: Place = "pool"
    prices: PausePrices | None = None
    fetch: Fetch | None = None
    brought_from: Origin = ""
    is_awaited: bool = False
    """A request has come that will end the pause."""

    due_s: float | None = None
    """When it must come back; only the entry of `Sessions._due` with this time counts."""

    num_tries: int = 0


class Sessions:
    """See the module. Single caller: the engine thread."""

    def __init__(self, manager: Manager, prices: Prices, pins: Pins) -> None:
        self._manager = manager
        self._prices = prices
        self._pins = pins
        self._durations = Durations()
        self._sessions: OrderedDict[SessionKey, _Session] = OrderedDict()
        self._num_tokens = 0
        self._num_fetches = 0
        self._names: Counter[BlockContent] = Counter()
        """How many sessions want each content."""

        self._due: list[tuple[float, int, _Session]] = []
        self._count = 0

    @property
    def next_due_s(self) -> float | None:
        """When `tick` will have something to do."""
        return self._due[0][0] if self._due else None

    def status(self, key: SessionKey) -> SessionStatus | None:
        """What is known of a session; None if there is none."""
        session = self._sessions.get(key)
        return None if session is None else _status(session)

    def arrived(self, state: RequestState, now_s: float) -> None:
        """A request of a session has come: its pause is over."""
        key = _key_of(state)
        session = self._sessions.get(key)
        if session is None:
            session = self._sessions[key] = _Session(key)
        session.num_active += 1
        self._sessions.move_to_end(key)
        if session.paused_s is not None:
            if not session.is_awaited:
                self._durations.learn(key.tenant, session.tools, now_s - session.paused_s)
            session.is_awaited = state.resumes = True
        self._forget_oldest()

    def begun(self, state: RequestState, *, num_cached: int) -> Origin:
        """A request of a session has got its blocks.

        Returns:
            Where the KV came from, if the session was paused before.
        """
        session = self._sessions.get(_key_of(state))
        if session is None or not state.resumes:
            return ""
        state.resumes = False
        origin = session.brought_from
        self._end_pause(session)
        if num_cached == 0:
            return "recompute"
        if state.restored.disk_tokens:
            return "disk"
        if state.restored.ram_tokens:
            return "ram"
        return origin or "pool"

    def ended(self, state: RequestState, *, keep: bool) -> None:
        """A request of a session has ended; its blocks have been released.

        Args:
            keep: whether what it computed is right.
        """
        session = self._sessions.get(_key_of(state))
        if session is None:
            return
        session.num_active = max(0, session.num_active - 1)
        if not keep or state.chain is None or state.num_computed == 0:
            if session.paused_s is not None and session.prices is None:
                self._end_pause(session)  # It was to be decided with what this request computed.
            return
        self._unname(session.kept)
        self._num_tokens += len(state.token_ids) - len(session.token_ids)
        session.chain, session.token_ids = state.chain, state.token_ids
        session.num_tokens = state.num_computed
        session.kept = self._manager.keeper.name(state.chain, state.token_ids, session.num_tokens)
        self._names.update(session.kept.contents)
        session.brought_from = ""
        if session.paused_s is None:
            session.place = "pool"
        else:  # It was paused while it still ran.
            self._place(session)
        self._forget_oldest()

    def pause(
        self, key: SessionKey, expected_s: float | None, tools: Sequence[str], now_s: float
    ) -> SessionStatus | None:
        """Say that a session will not go on for a while; None if there is no such session.

        Args:
            expected_s: how long; None: as long as these tools have taken before.
            tools: what runs meanwhile; how long that takes is learned.
        """
        session = self._sessions.get(key)
        if session is None:
            return None
        self._end_pause(session)
        session.tools = tuple(sorted(set(tools)))
        session.paused_s = now_s
        session.expected_s = (
            self._durations.expected_s(key.tenant, session.tools)
            if expected_s is None
            else expected_s
        )
        if session.num_active == 0:
            self._place(session)
        return _status(session)

    def resume(self, key: SessionKey, now_s: float) -> SessionStatus | None:
        """Bring a paused session back now; None if there is no such session."""
        session = self._sessions.get(key)
        if session is None:
            return None
        waits = session.due_s is None or session.due_s > now_s
        if session.paused_s is not None and session.place == "below" and waits:
            self._push(now_s, session)
        return _status(session)

    def delete(self, key: SessionKey) -> bool:
        """Forget a session; what only it wanted is handed out first. Whether there was one."""
        session = self._sessions.get(key)
        if session is None:
            return False
        self._manager.keeper.let_go(session.kept, self._is_own)
        self._forget(session)
        return True

    def tick(self, now_s: float, num_spare: Callable[[], int]) -> None:
        """Bring back what will be needed soon.

        Args:
            num_spare: tells how many blocks may be taken for it.
        """
        while self._due and self._due[0][0] <= now_s:
            due_s, _, session = heapq.heappop(self._due)
            if session.due_s != due_s or session.paused_s is None:
                continue  # Another time counts now.
            session.due_s = None
            end_s = session.paused_s + session.expected_s
            if self._bring_up(session, num_spare()):
                until_s = max(now_s, end_s) + LEAD_S + min(session.expected_s, MAX_GRACE_S)
                self._pins.add(*session.key, session.kept, until_s)
            elif now_s < end_s + LEAD_S:
                # The disk has not answered yet, or there is no room: until it is needed.
                session.num_tries += 1
                retry_s = min(MAX_RETRY_S, LEAD_S / 4 * 2 ** min(session.num_tries // 8, 8))
                self._push(now_s + retry_s, session)
            else:
                self._end_fetch(session)

    def clear(self) -> None:
        """Nothing of what was cached is left."""
        for session in self._sessions.values():
            self._end_pause(session)
            session.kept = Kept(())
        self._names.clear()

    def check(self) -> None:
        """Assert every invariant. Linear; for tests."""
        names = Counter(c for session in self._sessions.values() for c in session.kept.contents)
        assert +self._names == names, "names of contents"
        assert self._num_tokens == sum(len(s.token_ids) for s in self._sessions.values()), "tokens"
        fetching = [s for s in self._sessions.values() if s.fetch is not None]
        assert len(fetching) == self._num_fetches <= MAX_FETCHES, "fetches of sessions"
        assert all(s.paused_s is not None for s in fetching), "a fetch without a pause"

    def _place(self, session: _Session) -> None:
        """Decide for the cheapest of three, and do it."""
        assert session.paused_s is not None
        keeper, num_blocks = self._manager.keeper, len(session.kept.contents)
        prices = session.prices = self._price(session, num_blocks)
        others = (
            prices.recompute_s if prices.move_s is None else min(prices.move_s, prices.recompute_s)
        )
        until_s = session.paused_s + session.expected_s
        if prices.stay_s <= others and num_blocks <= self._pins.room(session.key.tenant):
            session.place = "pool"
            grace_s = LEAD_S + min(session.expected_s, MAX_GRACE_S)
            self._pins.add(*session.key, session.kept, until_s + grace_s)
        elif prices.move_s is not None and prices.move_s < prices.recompute_s:
            session.place = "below"
            keeper.send_down(session.kept, self._is_own)
            self._push(until_s - LEAD_S - self._prices.restore_s(num_blocks, num_blocks), session)
        else:
            session.place = "dropped"
            keeper.let_go(session.kept, self._is_own)

    def _price(self, session: _Session, num_blocks: int) -> PausePrices:
        manager = self._manager
        share = num_blocks / manager.num_blocks
        scarcity = 1.0 - max(0, manager.num_free_unpinned - num_blocks) / manager.num_blocks
        return PausePrices(
            stay_s=session.expected_s * share * scarcity,
            move_s=None if manager.below is None else move_s(self._prices, num_blocks),
            recompute_s=self._prices.recompute_s(0, session.num_tokens),
        )

    def _bring_up(self, session: _Session, num_spare: int) -> bool:
        """Have what is below the pool loaded into it; whether it is there then."""
        assert session.chain is not None
        if session.fetch is not None and not session.fetch.done:
            return False
        # One token more, since the last one of a sequence is never taken from the cache.
        token_ids = [*session.token_ids[: session.num_tokens], 0]
        disk = session.fetch is None
        manager = self._manager
        found = manager.find_cached_prefix(session.chain, token_ids, disk=disk)
        # What is in the pool takes free blocks too, as soon as it is held.
        needed = found.num_blocks - manager.num_shared(found) + manager.num_lent(found)
        if needed > num_spare:
            self._end_fetch(session)  # It keeps slots that requests may wait for.
            return False
        if found.num_on_disk and manager.below is not None:
            if self._num_fetches < MAX_FETCHES:
                session.fetch = manager.below.fetch(session.chain, found, token_ids)
                self._num_fetches += session.fetch is not None
            return False
        if found.num_below:
            name = RequestId(f"session/{session.key.tenant}/{session.key.id}")
            restored = manager.begin(name, session.chain, found, token_ids)
            manager.advance(name, found.num_tokens, token_ids)
            manager.release(name, token_ids, down=False)
            session.brought_from = "disk" if restored.disk_tokens else "ram"
        self._end_fetch(session)
        return True

    def _end_pause(self, session: _Session) -> None:
        session.paused_s = session.due_s = session.prices = None
        session.brought_from = ""
        session.is_awaited = False
        session.num_tries = 0
        self._end_fetch(session)
        self._pins.end(*session.key)

    def _end_fetch(self, session: _Session) -> None:
        if session.fetch is not None and self._manager.below is not None:
            self._manager.below.end_fetch(session.fetch)
            session.fetch = None
            self._num_fetches -= 1

    def _push(self, due_s: float, session: _Session) -> None:
        session.due_s = due_s
        self._count += 1
        heapq.heappush(self._due, (due_s, self._count, session))
        if len(self._due) > 2 * len(self._sessions) + _MIN_STALE:
            self._due = [entry for entry in self._due if entry[2].due_s == entry[0]]
            heapq.heapify(self._due)

    def _is_own(self, content: BlockContent) -> bool:
        """Whether no more than one session wants a content."""
        return self._names[content] <= 1

    def _unname(self, kept: Kept) -> None:
        for content in kept.contents:
            self._names[content] -= 1
            if self._names[content] <= 0:
                del self._names[content]

    def _forget(self, session: _Session) -> None:
        self._end_pause(session)
        self._unname(session.kept)
        self._num_tokens -= len(session.token_ids)
        del self._sessions[session.key]

    def _forget_oldest(self) -> None:
        """Keep within the limits, at the expense of the tenant that has most.

        Those that wait for a tool are forgotten after all others, those with a request never.
        """
        while len(self._sessions) > MAX_SESSIONS or self._num_tokens > MAX_TOKENS:
            tenants = Counter(key.tenant for key, s in self._sessions.items() if not s.num_active)
            if not tenants:
                return
            [(most, _)] = tenants.most_common(1)
            idle = [s for s in self._sessions.values() if s.key.tenant == most and not s.num_active]
            self._forget(min(idle, key=lambda session: session.paused_s is not None))


def _key_of(state: RequestState) -> SessionKey:
    return SessionKey(state.request.tenant, state.request.session)


def _status(session: _Session) -> SessionStatus:
    paused = session.paused_s is not None
    return SessionStatus(
        id=session.key.id,
        active=session.num_active > 0,
        paused=paused,
        num_tokens=session.num_tokens,
        num_blocks=len(session.kept.contents),
        place=session.place,
        expected_s=session.expected_s if paused else None,
        prices=session.prices if paused else None,
    )
