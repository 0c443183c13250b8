"""/v1/kv_events: the log as server-sent events, for who runs the server."""

import asyncio
import json
from typing import Any, NamedTuple

import pytest
from starlette.applications import Starlette
from tests.server.asgi import Call, client, make_app
from tests.server.fakes import FakeEngine, Served, served

from kokuban.kvcache.events import EventLog

ROUTE = "/v1/kv_events"
KEY, ROOT = bytes(range(32)), bytes(32)


class Event(NamedTuple):
    id: str
    kind: str
    data: dict[str, Any]


def model_of(log: EventLog | None) -> Served:
    return served(engine=FakeEngine(log=log))


def new_log(num_events: int = 0, capacity: int = 64) -> EventLog:
    """A log that has been read already."""
    log = EventLog("life", capacity)
    log.start()
    for number in range(num_events):
        log.removed("ram", 1, bytes([number]), (number,))
    return log


def parse(data: bytes) -> list[Event]:
    events = []
    for piece in data.decode().split("\n\n"):
        if not piece or piece.startswith(": "):
            continue
        names = [line.partition(": ")[0] for line in piece.split("\n")]
        assert names == ["id", "event", "data"]
        values = [line.partition(": ")[2] for line in piece.split("\n")]
        events.append(Event(values[0], values[1], json.loads(values[2])))
    return events


ADMIN = {"authorization": "Bearer admin"}


def app_of(model: Served, **settings: Any) -> Starlette:
    return make_app(model, **{"admin_keys": ("admin",), **settings})


def follow(app: Starlette, query: str = "", **headers: str) -> Call:
    headers = {**ADMIN, **headers}
    return Call(app, ROUTE, {}, method="GET", query=query, **headers)


async def test_events_come_with_all_that_a_router_needs() -> None:
    log = new_log()
    call = follow(app_of(model_of(log)))
    await call.until(b"open")
    log.stored("pool", 0, KEY, ROOT, (5, 6), (3,))
    log.stored("disk", 1, KEY, None, (5, 6))
    log.stored("ram", 0, KEY, None, (), (9,))
    log.removed("ram", 0, KEY, (9,))
    log.cleared("pool")
    await call.until(b"cleared")
    call.leave()
    await call.end()

    assert call.status == 200
    assert parse(call.data) == [
        ("life-0", "open", {"epoch": "life", "sequence": 0}),
        (
            "life-1",
            "stored",
            {
                "tier": "pool",
                "group": 0,
                "key": KEY.hex(),
                "parent": ROOT.hex(),
                "num_tokens": 2,
                "token_ids": [5, 6],
                "block_ids": [3],
            },
        ),
        (
            "life-2",
            "stored",
            {
                "tier": "disk",
                "group": 1,
                "key": KEY.hex(),
                "parent": None,
                "num_tokens": 2,
                "token_ids": [5, 6],
                "block_ids": [],
            },
        ),
        ("life-3", "stored", {"tier": "ram", "group": 0, "key": KEY.hex(), "block_ids": [9]}),
        ("life-4", "removed", {"tier": "ram", "group": 0, "key": KEY.hex(), "block_ids": [9]}),
        ("life-5", "cleared", {"tier": "pool"}),
    ]


@pytest.mark.parametrize(
    ("query", "headers", "expected"),
    [
        ("", {}, ["life-3 open"]),
        ("since=0", {}, ["life-0 open", "life-1 removed", "life-2 removed", "life-3 removed"]),
        ("since=2", {}, ["life-2 open", "life-3 removed"]),
        ("since=life-2", {}, ["life-2 open", "life-3 removed"]),
        ("since=0", {"last-event-id": "life-2"}, ["life-2 open", "life-3 removed"]),
    ],
)
async def test_a_reader_begins_where_it_says(
    query: str, headers: dict[str, str], expected: list[str]
) -> None:
    call = follow(app_of(model_of(new_log(3))), query, **headers)
    await call.until(expected[-1].split()[0].encode())
    call.leave()
    await call.end()

    assert [f"{event.id} {event.kind}" for event in parse(call.data)] == expected


@pytest.mark.parametrize(
    ("since", "num_lost"), [("life-1", 1), ("other-4", 2), ("life-9", 2), ("0", 2)]
)
async def test_what_is_lost_is_a_gap_that_comes_first(since: str, num_lost: int) -> None:
    """Six events, four of them kept. A place in another life of the server is lost whole."""
    call = follow(app_of(model_of(new_log(6, capacity=4))), f"since={since}")
    await call.until(b"life-6")
    call.leave()
    await call.end()

    first, *others = parse(call.data)
    assert first == ("life-2", "gap", {"epoch": "life", "sequence": 2, "num_lost": num_lost})
    assert [event.id for event in others] == ["life-3", "life-4", "life-5", "life-6"]


async def test_a_reader_that_falls_behind_is_told_so_in_the_stream() -> None:
    log = new_log(capacity=4)
    call = follow(app_of(model_of(log)))
    await call.until(b"open")
    for _ in range(6):
        log.cleared("disk")
    await call.until(b"life-6")
    call.leave()
    await call.end()

    found = [(event.id, event.kind) for event in parse(call.data)]
    assert found[:3] == [("life-0", "open"), ("life-2", "gap"), ("life-3", "cleared")]


async def test_silence_is_filled_with_comments_and_nothing_is_lost_in_it() -> None:
    log = new_log()
    call = follow(app_of(model_of(log), ping_s=0.01))
    await call.until(b": nothing new\n\n: nothing new\n\n")
    log.cleared("pool")
    await call.until(b"cleared")
    call.leave()
    await call.end()

    assert [event.kind for event in parse(call.data)] == ["open", "cleared"]


async def test_a_feed_ends_when_the_server_drains_and_does_not_hold_it_up() -> None:
    model = model_of(new_log())
    app = app_of(model)
    call = follow(app)
    await call.until(b"open")
    assert app.state.serving.drain.in_flight == 0

    assert await app.state.serving.drain.finish(5.0) == 0
    await call.end()
    late = follow(app)
    await late.end()

    assert call.status == 200
    assert model.client.num_readers == 0
    assert late.status == 503


async def test_a_feed_ends_with_the_engine_and_with_its_client() -> None:
    model = model_of(new_log())
    app = app_of(model)
    gone, stays = follow(app), follow(app)
    await gone.until(b"open")
    await stays.until(b"open")
    assert model.client.num_readers == 2

    gone.leave()
    await gone.end()
    assert model.client.num_readers == 1
    model.client.die()
    await stays.end()

    assert model.client.num_readers == 0


async def test_token_ids_are_shown_only_where_all_text_is_one_tenants() -> None:
    for keys, shown in (((), True), (("one",), False)):
        log = new_log()
        log.stored("pool", 0, KEY, ROOT, (5, 6), (3,))
        call = follow(app_of(model_of(log), api_keys=keys), "since=0")
        await call.until(b"stored")
        call.leave()
        await call.end()

        data = parse(call.data)[1].data
        assert data["num_tokens"] == 2
        assert ("token_ids" in data) is shown


async def test_the_feed_is_for_who_runs_the_server() -> None:
    async with client(model_of(new_log()), host="0.0.0.0", no_auth=True) as http:
        strangers = await http.get(ROUTE)
    async with client(model_of(new_log())) as http:
        without = await http.get(ROUTE)
    async with client(model_of(new_log()), api_keys=("one",)) as http:
        keyless = await http.get(ROUTE)
        tenant = await http.get(ROUTE, headers={"authorization": "Bearer one"})

    answers = (strangers, without, keyless, tenant)
    assert [answer.status_code for answer in answers] == [403, 403, 401, 403]


@pytest.mark.parametrize("query", ["since=x", "since=-", "since=1.5"])
async def test_a_place_that_is_none_is_refused(query: str) -> None:
    async with client(model_of(new_log()), admin_keys=("admin",), headers=ADMIN) as http:
        refused = await http.get(f"{ROUTE}?{query}")
        header = await http.get(ROUTE, headers={"last-event-id": "x"})

    assert (refused.status_code, header.status_code) == (400, 400)
    assert refused.json()["error"]["param"] == "since"
    assert header.json()["error"]["param"] == "Last-Event-ID"


async def test_without_a_cache_there_are_no_events() -> None:
    async with client(model_of(None), admin_keys=("admin",), headers=ADMIN) as http:
        refused = await http.get(ROUTE)

    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "no_prefix_cache"


async def test_a_failure_in_the_feed_is_not_swallowed() -> None:
    log = new_log()
    call = follow(app_of(model_of(log)))
    await call.until(b"open")
    log._last += 0.5  # type: ignore[assignment]  # nothing can be read any more

    with pytest.raises(TypeError):
        await asyncio.wait_for(call.task, 5)
