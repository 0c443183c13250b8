"""A short run of the fuzz driver, and what it would notice: benchmarks/fuzz.py has the long one."""

import asyncio
import logging
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from benchmarks import fuzz_client
from benchmarks.fuzz import (
    Alarm,
    Report,
    Target,
    _hardly_tried,
    _running,
    _try,
    case_maker,
    engine,
    fuzz,
)
from benchmarks.fuzz_cases import KINDS, Ask, Case
from benchmarks.fuzz_client import Answer, problem
from starlette.types import Receive, Scope, Send


def test_no_request_disturbs_the_server_or_the_streams_beside_it() -> None:
    """Keeps B12, B26, B27, B28 and B96 out: docs/bugbank.md."""
    with engine() as built:
        report = asyncio.run(fuzz(built, num_cases=300, seed=1, num_streams=4, stream_tokens=60))

    assert report.faults == []
    assert report.num_cases == 300
    assert report.num_streams >= 4
    assert {kind for kind, _ in report.statuses} == set(KINDS)
    assert {status for _, status in report.statuses} >= {200, 400, 404, 405}


def test_a_seed_always_makes_the_same_case_and_all_kinds_are_made() -> None:
    make = case_maker()
    cases = [make(seed) for seed in range(400)]

    assert cases == [make(seed) for seed in range(400)]
    assert set(Counter(case.kind for case in cases)) == set(KINDS)


async def test_a_request_that_is_never_answered_is_a_fault_with_its_case(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def silent(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(fuzz_client, "TIMEOUT_S", 0.02)
    report = Report()
    tried = Target({"open": silent}, port=0)  # type: ignore[dict-item]
    await _try(tried, Case("fields", (Ask("GET", "/"),)), 7, report)

    assert report.faults == ["case 7 (fields): TimeoutError()"]


async def test_a_response_that_never_ends_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    async def endless(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b'{"status":"in_progress"}'})

    monkeypatch.setattr(fuzz_client, "TIMEOUT_S", 0.1)
    report = Report()
    tried = Target({"open": endless}, port=0)  # type: ignore[dict-item]
    await _try(tried, Case("responses", (Ask("GET", "/", polls=True),)), 7, report)

    assert report.faults == ["case 7 (responses): TimeoutError()"]


def test_what_has_not_ended_in_the_servers_is_named() -> None:
    def app(**changes: Any) -> Any:
        facts = {"in_flight": 0, "runs": {}, "active": 0} | changes
        serving = SimpleNamespace(
            drain=SimpleNamespace(in_flight=facts["in_flight"]),
            quotas=SimpleNamespace(_accounts={"t": SimpleNamespace(num_active=facts["active"])}),
        )
        kept = SimpleNamespace(background=SimpleNamespace(_runs=facts["runs"]))
        return SimpleNamespace(state=SimpleNamespace(serving=serving, responses=kept))

    stats = SimpleNamespace(running=0, waiting=2)
    built: Any = SimpleNamespace(client=SimpleNamespace(stats=lambda: stats))
    apps = {"a": app(in_flight=3), "b": app(runs={"resp_1": None}), "c": app(active=1), "d": app()}

    assert list(_running(built, Target(apps, port=0))) == [
        "0 requests run, 2 wait",
        "3 connections of a",
        "1 responses in the background of b",
        "1 requests on the account of 't' of c",
    ]


@pytest.mark.parametrize(
    ("path", "body", "found"),
    [
        ("/v1/completions", b'data: {"a":1}\n\ndata: [DONE]\n\n', None),
        ("/v1/completions", b'data: {"a":1}\n\n', "a stream without an end"),
        ("/v1/messages", b'event: x\ndata: {"type":"message_stop"}\n\n', None),
        ("/v1/messages", b'event: x\ndata: {"type":"ping"}\n\n', "a stream without an end"),
        ("/v1/responses", b"event: response.failed\ndata: {}\n\n", None),
        ("/v1/responses", b"event: response.created\ndata: {}\n\n", "a stream without an end"),
        ("/v1/responses", b'event: error\ndata: {"error":{"code":"x"}}\n\n', "a failed stream"),
    ],
)
def test_a_stream_must_come_to_its_end(path: str, body: bytes, found: str | None) -> None:
    answer = Answer(200, {b"content-type": b"text/event-stream"}, body)

    assert (problem(Ask("POST", path), answer) or "").startswith(found or "")
    assert (problem(Ask("POST", path), answer) is None) is (found is None)


def test_a_route_that_is_sent_nothing_good_is_hardly_tried() -> None:
    paths = Counter({("/v1/messages", 200): 4, ("/v1/messages", 400): 200})
    paths += Counter({("/v1/responses", 200): 40, ("/v1/responses", 400): 200})

    assert list(_hardly_tried(paths)) == ["/v1/messages"]


def test_what_every_route_takes_is_drawn_from_its_schema() -> None:
    make = case_maker()
    asks = [ask for seed in range(1500) for ask in make(seed).asks if make(seed).kind == "schema"]
    bodies = Counter(ask.path for ask in asks if ask.body.startswith(b"{"))
    asked = Counter(ask.path for ask in asks)

    assert all(bodies[path] > 0.7 * asked[path] for path in asked)


def test_an_error_in_the_log_is_a_fault_also_if_the_client_saw_none() -> None:
    report = Report()
    alarm = Alarm(report)
    for level in (logging.WARNING, logging.ERROR):
        record = logging.LogRecord("x", level, "", 0, "level %d", (level,), None)
        if level >= alarm.level:
            alarm.handle(record)

    assert report.faults == ["log x: level 40 None"]
