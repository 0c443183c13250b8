"""Limits of each key and of each request: 429 and 504, with the time to come back."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI, RateLimitError
from starlette.applications import Starlette
from starlette.routing import Route
from tests.fakes_text import EOT, FIRST_PIECE
from tests.server.asgi import Call, client_of, make_app, parse_events
from tests.server.fakes import FakeEngine, Served, served
from tests.server.live import live

from kokuban.core.errors import ConfigError
from kokuban.server.app import create_app
from kokuban.server.quota import Bucket, duration
from kokuban.server.settings import ServerSettings

PATH = "/v1/completions"
BODY = {"model": "m", "prompt": "abcde", "max_tokens": 4, "ignore_eos": True}


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def now(self) -> float:
        return self.now_s


def app_of(clock: Clock, model: Served | None = None, **settings: Any) -> Starlette:
    return create_app(model or served(), ServerSettings(**settings), clock)


def test_a_bucket_fills_at_its_rate_and_no_further() -> None:
    bucket = Bucket(60, 0)

    bucket.spend(60, 0)
    assert (bucket.level(0), bucket.level(10), bucket.level(1000)) == (0, 10, 60)
    bucket.spend(100, 1000)
    assert bucket.level(1000) == -40
    assert bucket.wait_s(1, 1000) == 41
    assert bucket.wait_s(1000, 1000) == 100  # More than it holds: when it is full.


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0ms"), (0.0121, "13ms"), (1, "1s"), (1.41, "1.5s"), (59.99, "60s"), (361, "6m1s")],
)
def test_times_are_written_as_openai_does(seconds: float, text: str) -> None:
    assert duration(seconds) == text


async def test_requests_of_a_minute_are_counted_and_come_back() -> None:
    clock = Clock()
    model = served()
    async with client_of(app_of(clock, model, requests_per_minute=2)) as http:
        taken = [await http.post(PATH, json=BODY) for _ in range(2)]
        refused = await http.post(PATH, json=BODY)
        others = [await http.get(path) for path in ("/v1/models", "/health")]
        clock.now_s += 30
        later = await http.post(PATH, json=BODY)

    assert [answer.headers["x-ratelimit-remaining-requests"] for answer in taken] == ["1", "0"]
    assert taken[1].headers["x-ratelimit-limit-requests"] == "2"
    assert taken[1].headers["x-ratelimit-reset-requests"] == "1m0s"
    assert "x-ratelimit-limit-tokens" not in taken[0].headers
    assert refused.status_code == 429
    assert refused.headers["retry-after"] == "30"
    assert refused.json()["error"] == {
        "message": "this key has used up its 2 requests a minute; try again in 30 s",
        "type": "rate_limit_error",
        "param": None,
        "code": "rate_limit_exceeded",
    }
    assert [answer.status_code for answer in (*others, later)] == [200] * 3
    assert len(model.client.submitted) == 3


async def test_tokens_are_paid_after_they_were_used_whatever_the_prompt_is() -> None:
    """5 of the prompt and 4 of the answer: a debt of 5 with a limit of 4, paid off in 90 s."""
    clock = Clock()
    async with client_of(app_of(clock, tokens_per_minute=4)) as http:
        first = await http.post(PATH, json={**BODY, "stream": True})
        refused = await http.post(PATH, json=BODY)
        clock.now_s += 89
        again = await http.post(PATH, json=BODY)
        clock.now_s += 2
        later = await http.post(PATH, json=BODY)

    assert first.headers["x-ratelimit-limit-tokens"] == "4"
    assert [a.status_code for a in (first, refused, again, later)] == [200, 429, 429, 200]
    assert refused.headers["retry-after"] == "90"
    assert refused.headers["x-ratelimit-remaining-tokens"] == "0"


async def test_each_key_has_its_own_and_the_file_says_how_much(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(
        "[keys.one]\nkey = 'key-of-one'\n"
        "[keys.two]\nkey = 'key-of-two'\nrequests_per_minute = 2\n"
        "[keys.free]\nkey = 'key-of-free'\nrequests_per_minute = 0\n"
        "[keys.also-two]\nkey = 'also-key-of-two'\ntenant = 'two'\n"
    )
    path.chmod(0o600)
    app = app_of(Clock(), api_key_file=str(path), requests_per_minute=1)
    found = {}
    async with client_of(app) as http:
        for key in ("key-of-one", "key-of-two", "key-of-free", "also-key-of-two"):
            headers = {"x-api-key": key}
            answers = [await http.post(PATH, json=BODY, headers=headers) for _ in range(3)]
            found[key] = [answer.status_code for answer in answers]

    assert found == {
        "key-of-one": [200, 429, 429],
        "key-of-two": [200, 200, 429],
        "key-of-free": [200, 200, 200],
        "also-key-of-two": [429, 429, 429],
    }


@pytest.mark.parametrize("stream", [False, True])
async def test_requests_at_the_same_time_are_counted_until_they_end(stream: bool) -> None:
    model = served(engine=FakeEngine(seats=1))
    model.client.pause()
    app = app_of(Clock(), model, max_concurrent=2, commit_after_s=0)
    calls = [Call(app, PATH, {**BODY, "stream": stream}) for _ in range(2)]
    await model.client.until(running=1, waiting=1)
    async with client_of(app) as http:
        refused = await http.post(PATH, json=BODY)
        calls[1].leave()  # One that waits counts as well, and no more when its client has left.
        await calls[1].end()
        third = asyncio.create_task(http.post(PATH, json=BODY))
        await model.client.until(running=1, waiting=1)
        model.client.resume()
        await calls[0].end()
        assert (await third).status_code == 200

    assert refused.status_code == 429
    assert refused.json()["error"]["code"] == "too_many_concurrent"
    assert refused.headers["retry-after"] == "1"


async def test_who_is_at_a_limit_can_still_make_room() -> None:
    async with client_of(app_of(Clock(), requests_per_minute=1)) as http:
        taken = await http.post(PATH, json=BODY)
        refused = await http.post("/tokenize", json={"prompt": "p"})
        frees = [
            await http.post("/v1/sessions/s/pause", json={}),
            await http.post("/v1/responses/resp_a/cancel"),
        ]

    assert (taken.status_code, refused.status_code) == (200, 429)
    assert [answer.status_code for answer in frees] == [404, 404]


GENERATING = {
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/messages",
    "/v1/responses",
}


async def test_a_full_queue_refuses_before_anything_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is asked too much costs next to nothing, whatever its body is."""
    model = served()
    stats = replace(model.client.stats(), retry_after_s=7)
    monkeypatch.setattr(model.client, "stats", lambda: stats)
    app = make_app(model)
    queueing = {
        route.path
        for route in app.routes
        if isinstance(route, Route) and getattr(route.endpoint, "queues", False)
    }
    async with client_of(app) as http:
        refused = [await http.post(path, content=b"{") for path in sorted(queueing)]
        others = [
            await http.post("/tokenize", json={"prompt": "p"}),
            await http.get("/v1/models"),
            await http.get("/health"),
        ]
        ready = await http.get("/ready")

    assert queueing == GENERATING
    for answer in refused:
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "7")
    assert refused[0].json()["error"]["message"] == "the queue is full; try again in 7 s"
    assert [answer.status_code for answer in others] == [200] * 3
    assert ready.status_code == 503


async def test_openais_client_understands_and_comes_back() -> None:
    with live(served(), requests_per_minute=1) as url:
        async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            body = {"model": "m", "prompt": "p", "max_tokens": 1}
            await client.completions.create(**body)
            with pytest.raises(RateLimitError) as caught:
                await client.completions.create(**body)

    assert caught.value.code == "rate_limit_exceeded"


async def test_a_request_that_takes_too_long_is_ended_and_freed() -> None:
    for asked, limit in (("0.01", 0.0), ("99", 0.01), (None, 0.01)):
        model = served(engine=FakeEngine(seats=1))
        model.client.pause()
        app = make_app(model, request_timeout_s=limit)
        headers = {} if asked is None else {"x-request-timeout": asked}
        running = Call(app, PATH, BODY, **headers)
        await model.client.until(running=1)
        waiting = Call(app, PATH, BODY, **headers)
        for call in (running, waiting):
            await call.end()
            assert call.status == 504
            assert b'"code":"timeout"' in call.data
            assert b"within 0.01 s" in call.data
        assert (model.client.stats().running, model.client.stats().waiting) == (0, 0)


async def test_a_stream_that_takes_too_long_ends_with_an_error_event() -> None:
    model = served({ord("p"): FIRST_PIECE, FIRST_PIECE: EOT}, pieces=("one",))
    app = make_app(model, commit_after_s=0)
    body = {"model": "m", "prompt": "p", "stream": True}
    model.client.pause()
    call = Call(app, PATH, body, **{"x-request-timeout": "0.05"})
    await call.end()

    assert call.status == 200
    [event] = parse_events(call.data)
    assert (event["error"]["code"], event["error"]["type"]) == ("timeout", "timeout_error")
    assert model.client.stats().running == 0


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "soon", "", "1e999", "0x10"])
async def test_a_time_that_is_none_is_refused(value: str) -> None:
    model = served()
    async with client_of(make_app(model)) as http:
        response = await http.post(PATH, json=BODY, headers={"x-request-timeout": value})

    assert response.status_code == 400
    assert response.json()["error"]["param"] == "X-Request-Timeout"
    assert model.client.submitted == []


async def test_a_request_in_time_leaves_no_alarm_behind() -> None:
    async with client_of(make_app(served(), request_timeout_s=0.2)) as http:
        answer = await http.post(PATH, json=BODY)

    assert answer.status_code == 200
    assert not [h for h in asyncio.get_running_loop()._scheduled if not h.cancelled()]  # type: ignore[attr-defined]


def test_limits_are_no_numbers_of_nothing() -> None:
    with pytest.raises(ConfigError, match="requests_per_minute=nan"):
        ServerSettings(requests_per_minute=float("nan"))
