"""What is kept of responses, and what makes room."""

import random

import pytest

from kokuban.server.responses.event_log import EventLog
from kokuban.server.responses.items import ItemDict
from kokuban.server.responses.store import ENTRY_BYTES, Entry, Node, ResponseStore, new_node


class FakeClock:
    """Stands still until it is told to advance."""

    def __init__(self) -> None:
        self._now_s = 0.0

    def now(self) -> float:
        return self._now_s

    def advance(self, seconds: float) -> None:
        self._now_s += seconds


PAIR = 2 * ENTRY_BYTES
"""What a response and its turn cost beside their texts."""


def item(text: str) -> ItemDict:
    return {"type": "message", "role": "user", "content": text}


def store_of(max_bytes: int = 2**20, ttl_s: float = 60, **limits: int) -> ResponseStore:
    return ResponseStore(max_bytes, ttl_s, FakeClock(), **limits)


def entry_of(
    response_id: str,
    *,
    tenant: str = "",
    previous: Node | None = None,
    size: int = 0,
    running: bool = False,
) -> Entry:
    body = b"x" * size
    outputs = b'[{"id": "msg_%b"}]' % response_id.encode()
    return Entry(
        id=response_id,
        tenant=tenant,
        node=new_node(previous, [item(response_id)], outputs, (f"msg_{response_id}",)),
        status="completed",
        body=lambda: body,
        body_bytes=size,
        is_running=running,
    )


def kept(store: ResponseStore, *ids: str, tenant: str = "") -> list[str]:
    return [each for each in ids if store.find(tenant, each) is not None]


def test_a_conversation_is_all_turns_in_their_order() -> None:
    first = entry_of("a")
    second = entry_of("b", previous=first.node)

    assert second.node.conversation() == [
        item("a"),
        {"id": "msg_a"},
        item("b"),
        {"id": "msg_b"},
    ]
    assert second.node.total_bytes == 2 * first.node.total_bytes


def test_a_turn_is_counted_once_and_lives_as_long_as_it_is_needed() -> None:
    store = store_of()
    first = entry_of("a")
    others = [entry_of(name, previous=first.node) for name in "bc"]
    for entry in (first, *others):
        store.put(entry)
    turn = first.node.num_bytes

    store.delete(first)
    without_first = store.num_bytes
    store.delete(others[0])
    without_second = store.num_bytes
    referred = store.item("", "msg_a")
    store.delete(others[1])
    store.delete(others[1])

    assert without_first == 3 * turn + 2 * ENTRY_BYTES
    assert without_second == 2 * turn + ENTRY_BYTES
    assert referred == {"id": "msg_a"}
    assert store.num_bytes == 0
    assert store.item("", "msg_a") is None


def test_a_turn_that_was_forgotten_comes_back_with_what_goes_on_from_it() -> None:
    """A request may hold its conversation while the store forgets it."""
    store = store_of()
    first = entry_of("a")
    store.put(first)
    store.delete(first)

    store.put(entry_of("b", previous=first.node))

    assert store.item("", "msg_a") == {"id": "msg_a"}
    assert store.num_bytes == 2 * first.node.num_bytes + ENTRY_BYTES


def test_the_least_recently_used_makes_room() -> None:
    size = entry_of("a").node.num_bytes + ENTRY_BYTES
    store = store_of(3 * size)
    for name in "abc":
        store.put(entry_of(name))
    store.find("", "a")

    store.put(entry_of("d"))

    assert kept(store, *"abcd") == ["a", "c", "d"]


def test_room_is_made_by_the_tenant_that_has_most() -> None:
    size = entry_of("a").node.num_bytes + ENTRY_BYTES
    store = store_of(4 * size)
    store.put(entry_of("z", tenant="small"))
    for name in "abcdef":
        store.put(entry_of(name, tenant="large"))

    assert kept(store, "z", tenant="small") == ["z"]
    assert kept(store, *"abcdef", tenant="large") == ["d", "e", "f"]


def test_the_number_of_responses_is_bounded_too() -> None:
    store = store_of(max_responses=2)
    for name in "abc":
        store.put(entry_of(name))

    assert kept(store, *"abc") == ["b", "c"]
    assert store.num_responses == 2


def test_what_is_larger_than_the_store_is_not_kept() -> None:
    store = store_of(PAIR + 100)
    store.put(entry_of("a", size=1000))

    assert kept(store, "a") == []
    assert store.num_bytes == 0


def test_what_nobody_asks_for_is_forgotten_after_its_time() -> None:
    clock = FakeClock()
    store = ResponseStore(2**20, 60, clock)
    store.put(entry_of("a"))
    store.put(entry_of("b"))
    clock.advance(40)
    store.find("", "a")
    clock.advance(40)

    assert kept(store, "a", "b") == ["a"]
    assert store.item("", "msg_b") is None


def test_what_runs_is_never_forgotten() -> None:
    clock = FakeClock()
    store = ResponseStore(1, 60, clock)
    entry = entry_of("a", running=True)
    store.put(entry)
    clock.advance(100)

    assert kept(store, "a") == ["a"]

    entry.is_running = False
    store.settle(entry, entry.node)

    assert kept(store, "a") == []
    assert store.num_bytes == 0


def test_a_response_that_ended_is_counted_with_its_answer() -> None:
    store = store_of()
    entry = entry_of("a", running=True)
    entry.node = new_node(None, [item("a")])
    store.put(entry)
    ended = entry_of("a", size=500)

    entry.is_running, entry.body = False, ended.body
    store.settle(entry, ended.node)

    assert store.num_bytes == 500 + ended.node.num_bytes + ENTRY_BYTES
    assert store.item("", "msg_a") == {"id": "msg_a"}


def test_events_push_out_others_but_not_what_runs() -> None:
    store = store_of(2 * PAIR + 1000)
    old, running = entry_of("a"), entry_of("b", running=True)
    running.log = EventLog()
    store.put(old)
    store.put(running)

    has_room = store.charge(running, 900)
    has_none = store.charge(running, 10_000)

    assert has_room
    assert not has_none
    assert kept(store, "a", "b") == ["b"]


def test_another_tenants_response_and_items_are_unknown() -> None:
    store = store_of()
    store.put(entry_of("a", tenant="one"))

    assert store.find("two", "a") is None
    assert store.item("two", "msg_a") is None
    assert store.item("one", "msg_a") == {"id": "msg_a"}


@pytest.mark.parametrize("seed", range(5))
def test_counts_are_right_whatever_happens(seed: int) -> None:
    """What each tenant keeps, counted anew after each of many random steps."""
    draw = random.Random(seed)
    clock = FakeClock()
    store = ResponseStore(20 * PAIR, 60, clock, max_responses=12)
    entries: list[Entry] = []
    for number in range(300):
        tenant = draw.choice("ab")
        own = [entry for entry in entries if entry.tenant == tenant]
        match draw.randrange(8):
            case 0 | 1 | 2:
                previous = draw.choice(own).node if own and draw.random() < 0.8 else None
                entry = entry_of(
                    str(number),
                    tenant=tenant,
                    previous=previous,
                    size=draw.randrange(PAIR),
                    running=draw.random() < 0.3,
                )
                entries.append(entry)
                store.put(entry)
            case 3 if own:
                store.delete(draw.choice(own))
            case 4 if own:
                store.charge(draw.choice(own), draw.randrange(1000))
            case 5 if own:
                entry = draw.choice(own)
                if entry.is_running:
                    entry.is_running = False
                    store.settle(entry, entry_of(f"{number}", previous=entry.node.previous).node)
            case 6:
                clock.advance(draw.randrange(20))
            case _ if own:
                store.find(tenant, draw.choice(own).id)
        assert_counted(store)


def assert_counted(store: ResponseStore) -> None:
    shelves = store._shelves
    for tenant, shelf in shelves.items():
        nodes: set[Node] = set()
        for entry in shelf.entries.values():
            node: Node | None = entry.node
            while node is not None and node not in nodes:
                nodes.add(node)
                node = node.previous
        kept_bytes = [entry.num_bytes for entry in shelf.entries.values()]
        assert shelf.num_bytes == sum(kept_bytes) + sum(node.num_bytes for node in nodes)
        ids = {item_id for node in nodes for item_id in node.output_ids}
        assert {item_id for owner, item_id in store._items if owner == tenant} == ids
    assert {owner for owner, _ in store._items} <= set(shelves)
