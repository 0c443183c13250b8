"""Tells what the prefix cache came to hold and what it lost, in order and with numbers.

Owns: a ring of the latest events. One thread writes it (the engine's); any thread may read it
without a lock, because every event carries its own number: a reader that finds another number in
the place of the one it wanted knows that the writer has been round the ring.

Until somebody reads, events are counted and not kept, so that a log that nobody wants costs an
addition for each block. The first reader is told of those as lost.

Token ids are prompt text: whoever passes events on decides who may read them.
"""

from typing import Literal, NamedTuple, Self

Tier = Literal["pool", "ram", "disk"]
"""Where a block lies: in the KV pool, in host memory, on disk."""

Kind = Literal["stored", "removed", "cleared"]

CAPACITY = 2**15
"""Events that are kept: some 40 prefilled chunks of 2048 tokens with six KV groups."""

MAX_BATCH = 1024
"""Events that one read returns at most."""


class KvEvent(NamedTuple):
    """One change of what a tier holds. A content is named by its group and its key."""

    sequence: int
    """Counts from 1, without a hole."""

    kind: Kind
    """`stored`: the content can be found in the tier from now on; `removed`: no longer; `cleared`:
    nothing that the tier held, in any group, can be found any longer."""

    tier: Tier
    group: int | None = None
    """Index of the KV group; None for `cleared`."""

    key: bytes = b""
    parent: bytes | None = None
    """Key of the block before it, the root of its chain included. For `stored` in the pool only;
    other tiers name what the pool has told of."""

    token_ids: tuple[int, ...] = ()
    """The block's own tokens, where `parent` is told: as many as it has, so fewer for a tail."""

    block_ids: tuple[int, ...] = ()
    """Where it lies in its tier: pool blocks or host slots; empty where that says nothing."""


class Cursor(NamedTuple):
    """A place in one log: everything up to `sequence` has been read."""

    epoch: str
    """Of the log; empty: whichever there is."""

    sequence: int

    def __str__(self) -> str:
        return f"{self.epoch}-{self.sequence}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """The opposite of `str`; a number alone has no epoch.

        Raises:
            ValueError: it is neither.
        """
        epoch, _, number = text.rpartition("-")
        if not (number.isascii() and number.isdecimal() and len(number) < 20):
            raise ValueError(f"{text[:64]!r} is no place in the events: N or EPOCH-N is one")
        return cls(epoch, int(number))


START = Cursor("", 0)
"""Before the first event of a log."""


class Replay(NamedTuple):
    """What came after a cursor, as far as it is still kept."""

    events: tuple[KvEvent, ...]
    cursor: Cursor
    """Where to read on: at the last of `events`, or where the log is now."""

    is_gap: bool = False
    """Events between the cursor and the first of `events` are lost: what the reader knew is void.
    Also when the cursor is of another log, or of none."""

    num_lost: int = 0
    """How many are lost, as far as this log knows."""


class EventLog:
    """The latest events of one prefix cache. Every write is O(1).

    Args:
        epoch: names this log among those of other lives of the server; without "-".
        capacity: events that are kept.
    """

    def __init__(self, epoch: str, capacity: int = CAPACITY) -> None:
        assert capacity >= 1, f"a log of {capacity} events tells nothing"
        assert "-" not in epoch, f"epoch {epoch!r} cannot be told from a number"
        self._epoch = epoch
        self._capacity = capacity
        self._ring: list[KvEvent | None] = []
        self._keeps = False
        self._last = 0
        self._first_kept: int | None = None

    @property
    def cursor(self) -> Cursor:
        """Where the log is now."""
        return Cursor(self._epoch, self._last)

    # The writer's.

    def stored(
        self,
        tier: Tier,
        group: int,
        key: bytes,
        parent: bytes | None,
        token_ids: tuple[int, ...],
        block_ids: tuple[int, ...] = (),
    ) -> None:
        """The content (group, key) can be found in the tier from now on."""
        number = self._last + 1
        if self._keeps:
            self._keep(KvEvent(number, "stored", tier, group, key, parent, token_ids, block_ids))
        self._last = number

    def removed(self, tier: Tier, group: int, key: bytes, block_ids: tuple[int, ...] = ()) -> None:
        """The content (group, key) can be found in the tier no longer."""
        number = self._last + 1
        if self._keeps:
            self._keep(KvEvent(number, "removed", tier, group, key, block_ids=block_ids))
        self._last = number

    def cleared(self, tier: Tier) -> None:
        """Nothing that the tier held can be found any longer."""
        number = self._last + 1
        if self._keeps:
            self._keep(KvEvent(number, "cleared", tier))
        self._last = number

    def _keep(self, event: KvEvent) -> None:
        """The event is in its place before readers are told, by `_last`, that it is there."""
        if self._first_kept is None:
            self._first_kept = event.sequence
        self._ring[event.sequence % self._capacity] = event

    # Everybody's.

    def start(self) -> None:
        """Keep events from now on. A second call does nothing."""
        if not self._keeps:
            self._ring = [None] * self._capacity
            self._keeps = True

    def since(self, cursor: Cursor, limit: int = MAX_BATCH) -> Replay:
        """The events after a cursor, oldest first, `limit` at most."""
        last = self._last
        known = cursor.epoch in ("", self._epoch) and cursor.sequence <= last
        read = cursor.sequence if known else 0
        first_kept = last + 1 if self._first_kept is None else self._first_kept
        first = max(read + 1, first_kept, last - self._capacity + 1)
        events: list[KvEvent] = []
        for sequence in range(first, min(last, first + limit - 1) + 1):
            event = self._ring[sequence % self._capacity]
            if event is not None and event.sequence == sequence:
                events.append(event)
            else:  # The writer has been round: this one and those before it count as lost.
                events.clear()
                first = sequence + 1
        num_lost = first - 1 - read
        position = Cursor(self._epoch, first - 1 + len(events))
        return Replay(tuple(events), position, not known or num_lost > 0, num_lost)
