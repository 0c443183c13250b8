"""Remembers responses so that they can be asked for and continued, within a limit.

Owns: what is kept of every tenant. A tenant finds its own responses only, and pushes out only
its own while it holds more than anybody else: room is made by the tenant that has most, least
recently used first.

A conversation is a chain of nodes, one for each turn, that later turns share. A node is counted
once and lives as long as any response that ends with it or goes on from it: forgetting or deleting
an early response does not break a conversation.

Lives on the event loop. In memory only: a restart forgets everything.
"""

import json
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from kokuban.observe.clock import Clock
from kokuban.server.responses.bodies import Status, encode_given
from kokuban.server.responses.event_log import EventLog
from kokuban.server.responses.items import ItemDict

MAX_RESPONSES = 10_000
"""Of all tenants together."""

ENTRY_BYTES = 2048
"""What a response or a node costs beside its texts."""


@dataclass(slots=True, eq=False)
class Node:
    """One turn of a conversation: what came in and what was answered."""

    previous: "Node | None"
    inputs: bytes
    """JSON list of items."""

    outputs: bytes
    """JSON list of items; empty while there is no answer."""

    output_ids: tuple[str, ...] = ()
    total_bytes: int = 0
    """Of the whole conversation, up to here."""

    holders: int = 0
    """Responses that end here and nodes that go on from here, as far as they are kept."""

    def __post_init__(self) -> None:
        before = self.previous.total_bytes if self.previous else 0
        self.total_bytes = before + len(self.inputs) + len(self.outputs)

    @property
    def num_bytes(self) -> int:
        """What it costs to keep this turn."""
        return len(self.inputs) + len(self.outputs) + ENTRY_BYTES

    def conversation(self) -> list[ItemDict]:
        """All items, from the first turn to this one."""
        turns: list[Node] = []
        node: Node | None = self
        while node is not None:
            turns.append(node)
            node = node.previous
        return [item for turn in reversed(turns) for item in turn.items()]

    def items(self) -> list[ItemDict]:
        """Those of this turn."""
        return [*self.input_items(), *json.loads(self.outputs or b"[]")]

    def input_items(self) -> list[ItemDict]:
        """What was new when this turn began."""
        items: list[ItemDict] = json.loads(self.inputs)
        return items


def new_node(
    previous: Node | None, inputs: list[ItemDict], outputs: bytes = b"", ids: tuple[str, ...] = ()
) -> Node:
    """A node that nobody keeps yet."""
    return Node(previous, encode_given(inputs), outputs, ids)


@dataclass(slots=True, eq=False, kw_only=True)
class Entry:
    """One response that is kept."""

    id: str
    tenant: str
    node: Node
    status: Status
    body: Callable[[], bytes]
    """The response as JSON, as it is now."""

    body_bytes: int = 0
    used_s: float = 0.0
    log_bytes: int = 0
    """Of the events that are kept to be shown again."""

    is_background: bool = False
    is_running: bool = False
    """It is not forgotten before it has ended."""

    log: EventLog | None = None
    """Its events, where they may be asked for."""

    @property
    def num_bytes(self) -> int:
        """What it costs to keep it, its turn not counted."""
        return self.body_bytes + self.log_bytes + ENTRY_BYTES


@dataclass(slots=True)
class _Shelf:
    """What one tenant keeps, least recently used first."""

    entries: OrderedDict[str, Entry] = field(default_factory=OrderedDict)
    num_bytes: int = 0


class ResponseStore:
    """The responses that are kept.

    Args:
        max_bytes: of everything together; 0: nothing is kept.
        ttl_s: how long a response is kept that nobody asks for.
        clock: tells how long that was.
        max_responses: of all tenants together.
    """

    def __init__(
        self, max_bytes: int, ttl_s: float, clock: Clock, max_responses: int = MAX_RESPONSES
    ) -> None:
        self._max_bytes = max_bytes
        self._ttl_s = ttl_s
        self._clock = clock
        self._max_responses = max_responses
        self._shelves: dict[str, _Shelf] = {}
        self._items: dict[tuple[str, str], Node] = {}

    @property
    def keeps_any(self) -> bool:
        """Whether responses are kept here at all."""
        return self._max_bytes > 0

    @property
    def num_bytes(self) -> int:
        """What all tenants keep."""
        return sum(shelf.num_bytes for shelf in self._shelves.values())

    @property
    def num_responses(self) -> int:
        return sum(len(shelf.entries) for shelf in self._shelves.values())

    def put(self, entry: Entry) -> None:
        """Keep a response from now on. It is forgotten at once if it has no room even alone."""
        shelf = self._shelves.setdefault(entry.tenant, _Shelf())
        assert entry.id not in shelf.entries, entry.id
        entry.used_s = self._clock.now()
        shelf.entries[entry.id] = entry
        shelf.num_bytes += entry.num_bytes
        self._hold(entry.tenant, entry.node)
        self._trim()

    def settle(self, entry: Entry, node: Node) -> None:
        """Count anew a kept response that has ended, with the turn that it has become."""
        if self._get(entry) is None:
            return
        self._hold(entry.tenant, node)
        self._release(entry.tenant, entry.node)
        entry.node = node
        size = len(entry.body())
        self._shelves[entry.tenant].num_bytes += size - entry.body_bytes
        entry.body_bytes = size
        self._trim()

    def charge(self, entry: Entry, log_bytes: int) -> bool:
        """Count events that are kept of a response; False when there is no room for them."""
        shelf = self._get(entry)
        if shelf is None:
            return True
        shelf.num_bytes += log_bytes
        entry.log_bytes += log_bytes
        self._trim()
        return self.num_bytes <= self._max_bytes

    def find(self, tenant: str, response_id: str) -> Entry | None:
        """One of the tenant's own responses; it counts as used."""
        self._expire()
        shelf = self._shelves.get(tenant)
        entry = shelf.entries.get(response_id) if shelf else None
        if shelf is None or entry is None:
            return None
        entry.used_s = self._clock.now()
        shelf.entries.move_to_end(response_id)
        return entry

    def item(self, tenant: str, item_id: str) -> ItemDict | None:
        """An item that one of the tenant's own responses answered with."""
        self._expire()
        node = self._items.get((tenant, item_id))
        if node is None:
            return None
        outputs: list[ItemDict] = json.loads(node.outputs)
        return next(item for item in outputs if item["id"] == item_id)

    def delete(self, entry: Entry) -> None:
        """Forget a response; a second call does nothing."""
        shelf = self._get(entry)
        if shelf is not None:
            self._drop(shelf, entry)

    def _get(self, entry: Entry) -> _Shelf | None:
        """The shelf that a response stands on; None once it is forgotten."""
        shelf = self._shelves.get(entry.tenant)
        return shelf if shelf and shelf.entries.get(entry.id) is entry else None

    def _drop(self, shelf: _Shelf, entry: Entry) -> None:
        del shelf.entries[entry.id]
        shelf.num_bytes -= entry.num_bytes
        self._release(entry.tenant, entry.node)
        if not shelf.entries:
            assert shelf.num_bytes == 0, shelf.num_bytes
            del self._shelves[entry.tenant]

    def _hold(self, tenant: str, node: Node) -> None:
        """Keep a node, and with it those before it."""
        held: Node | None = node
        while held is not None:
            held.holders += 1
            if held.holders > 1:
                return
            self._shelves[tenant].num_bytes += held.num_bytes
            self._items.update(((tenant, item_id), held) for item_id in held.output_ids)
            held = held.previous

    def _release(self, tenant: str, node: Node) -> None:
        released: Node | None = node
        while released is not None:
            released.holders -= 1
            if released.holders:
                return
            self._shelves[tenant].num_bytes -= released.num_bytes
            for item_id in released.output_ids:
                del self._items[tenant, item_id]
            released = released.previous

    def _trim(self) -> None:
        self._expire()
        while self.num_bytes > self._max_bytes or self.num_responses > self._max_responses:
            fullest = sorted(self._shelves.values(), key=lambda shelf: -shelf.num_bytes)
            oldest = next(filter(None, map(_oldest, fullest)), None)
            if oldest is None:
                return  # Only what still runs is left.
            self._drop(self._shelves[oldest.tenant], oldest)

    def _expire(self) -> None:
        last_s = self._clock.now() - self._ttl_s
        for shelf in list(self._shelves.values()):
            for entry in list(_unused(shelf, last_s)):
                self._drop(shelf, entry)


def _oldest(shelf: _Shelf) -> Entry | None:
    """The least recently used that has ended."""
    return next((entry for entry in shelf.entries.values() if not entry.is_running), None)


def _unused(shelf: _Shelf, last_s: float) -> Iterator[Entry]:
    for entry in shelf.entries.values():
        if entry.used_s > last_s:
            return
        if not entry.is_running:
            yield entry
