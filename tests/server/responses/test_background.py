"""Responses that no connection waits for."""

import asyncio

import httpx
import pytest
from tests.fakes_text import EOT, FIRST_PIECE
from tests.server.asgi import Call, Json, client, client_of, make_app
from tests.server.fakes import FakeEngine, Served, served
from tests.server.responses import speaking
from tests.server.responses.speaking import ask, parse_named_events, refused, stream

from kokuban.server.responses import background

A, B, C = range(FIRST_PIECE, FIRST_PIECE + 3)
PIECES = ("Hello", " world", "!!")


def model_of(**options: object) -> Served:
    return served(pieces=PIECES, engine=FakeEngine({10: A, A: B, B: EOT}, **options))  # type: ignore[arg-type]


async def final(http: httpx.AsyncClient, response_id: str) -> Json:
    """The response once it has ended."""
    async with asyncio.timeout(5):
        while True:
            answer: Json = (await http.get(f"/v1/responses/{response_id}")).json()
            if answer["status"] not in ("queued", "in_progress"):
                return answer
            await asyncio.sleep(0)


async def test_a_response_in_the_background_is_asked_for_until_it_is_final() -> None:
    model = model_of()
    model.client.pause()
    async with client(model) as http:
        queued = await ask(http, background=True)
        still = (await http.get(f"/v1/responses/{queued['id']}")).json()
        items = (await http.get(f"/v1/responses/{queued['id']}/input_items")).json()["data"]
        not_yet = await refused(http, previous_response_id=queued["id"])
        model.client.resume()
        answer = await final(http, queued["id"])
        more = await ask(http, input="q", previous_response_id=queued["id"])

    assert (queued["status"], queued["output"]) == ("queued", [])
    assert still == queued
    assert [item["content"][0]["text"] for item in items] == ["p"]
    assert not_yet["code"] == "previous_response_not_ready"
    assert answer["status"] == "completed"
    assert answer["output"][0]["content"][0]["text"] == "Hello world"
    assert answer["usage"]["output_tokens"] == 3
    assert "Hello world" in speaking.prompt_of(model)
    assert more["status"] == "completed"


async def test_a_response_is_shown_as_far_as_it_has_come() -> None:
    model = served(pieces=PIECES, engine=(engine := FakeEngine({10: A})))
    async with client(model) as http:
        started = await ask(http, background=True)
        async with asyncio.timeout(5):
            while engine.said < 3:
                await asyncio.sleep(0)
        engine.pause()
        answer = (await http.get(f"/v1/responses/{started['id']}")).json()
        await http.delete(f"/v1/responses/{started['id']}")

    assert answer["status"] == "in_progress"
    assert answer["output"][0]["status"] == "in_progress"
    assert answer["output"][0]["content"][0]["text"].startswith("HelloHello")
    assert "usage" not in answer


async def test_cancelling_ends_it_in_the_engine_and_keeps_what_it_had_said() -> None:
    engine = FakeEngine({10: A})  # Says the same for ever.
    async with client(served(pieces=PIECES, engine=engine)) as http:
        started = await ask(http, background=True)
        await engine.until(running=1)
        async with asyncio.timeout(5):
            while engine.said < 3:
                await asyncio.sleep(0)
        cancelled = (await http.post(f"/v1/responses/{started['id']}/cancel")).json()
        await engine.until(running=0)
        again = (await http.post(f"/v1/responses/{started['id']}/cancel")).json()
        more = await ask(http, input="q", previous_response_id=started["id"], max_output_tokens=1)

    assert cancelled["status"] == "cancelled"
    assert cancelled["output"][0]["status"] == "incomplete"
    assert cancelled["output"][0]["content"][0]["text"].startswith("HelloHello")
    assert cancelled["incomplete_details"] is cancelled["error"] is None
    assert again == cancelled
    assert more["status"] == "incomplete"


async def test_one_that_waits_can_be_cancelled_too() -> None:
    engine = FakeEngine({10: A}, seats=0)
    async with client(served(pieces=PIECES, engine=engine)) as http:
        started = await ask(http, background=True)
        cancelled = (await http.post(f"/v1/responses/{started['id']}/cancel")).json()
        await engine.until(running=0, waiting=0)

    assert cancelled["status"] == "cancelled"
    assert cancelled["output"] == []


async def test_one_that_has_ended_is_not_changed_by_cancelling() -> None:
    async with client(model_of()) as http:
        started = await ask(http, background=True)
        answer = await final(http, started["id"])
        cancelled = (await http.post(f"/v1/responses/{started['id']}/cancel")).json()

    assert cancelled == answer


async def test_deleting_one_that_runs_ends_it() -> None:
    engine = FakeEngine({10: A})
    async with client(served(pieces=PIECES, engine=engine)) as http:
        started = await ask(http, background=True)
        await engine.until(running=1)
        deleted = await http.delete(f"/v1/responses/{started['id']}")
        await engine.until(running=0)
        found = await http.get(f"/v1/responses/{started['id']}")

    assert deleted.status_code == 200
    assert found.status_code == 404


async def test_a_stream_goes_on_where_it_broke_off_also_after_the_end() -> None:
    async with client(model_of()) as http:
        events = await stream(http, background=True)
        path = f"/v1/responses/{events[0]['response']['id']}?stream=true"
        whole = await http.get(path)
        rest = await http.get(f"{path}&starting_after=4")
        nothing = await http.get(f"{path}&starting_after={events[-1]['sequence_number']}")
        bad = await http.get(f"{path}&starting_after=x")

    assert [event["type"] for event in events][:3] == [
        "response.created",
        "response.queued",
        "response.in_progress",
    ]
    assert [event["response"]["status"] for event in events[:3]] == [
        "queued",
        "queued",
        "in_progress",
    ]
    assert events[-1]["type"] == "response.completed"
    assert parse_named_events(whole.content) == events
    assert parse_named_events(rest.content) == events[5:]
    assert nothing.content == b""
    assert bad.json()["error"]["param"] == "starting_after"


async def test_a_reader_that_leaves_does_not_end_the_run() -> None:
    model = model_of()
    model.client.pause()
    app = make_app(model)
    call = Call(app, "/v1/responses", {"input": "p", "background": True, "stream": True})
    await call.until(b"response.queued")
    call.leave()
    await call.end()
    model.client.resume()

    response_id = parse_named_events(call.data)[0]["response"]["id"]
    async with client_of(app) as http:
        answer = await final(http, response_id)
        rest = await http.get(f"/v1/responses/{response_id}?stream=true&starting_after=1")

    assert answer["status"] == "completed"
    assert parse_named_events(rest.content)[-1]["response"] == answer


async def test_a_silent_stream_is_kept_open_by_comments() -> None:
    model = model_of()
    model.client.pause()
    app = make_app(model, ping_s=0.01)
    call = Call(app, "/v1/responses", {"input": "p", "background": True, "stream": True})
    await call.until(b": still working\n\n")
    model.client.resume()
    await call.end()

    assert parse_named_events(call.data)[-1]["type"] == "response.completed"


async def test_the_stream_of_a_cancelled_response_ends_with_its_status() -> None:
    engine = FakeEngine({10: A})
    app = make_app(served(pieces=PIECES, engine=engine))
    call = Call(app, "/v1/responses", {"input": "p", "background": True, "stream": True})
    await call.until(b"output_text.delta")
    response_id = call.data.split(b'"id":"')[1].split(b'"')[0].decode()
    async with client_of(app) as http:
        await http.post(f"/v1/responses/{response_id}/cancel")
    await call.end()

    last = parse_named_events(call.data)[-1]
    assert last["type"] == "response.incomplete"
    assert last["response"]["status"] == "cancelled"


@pytest.mark.parametrize(
    ("engine", "code", "words"),
    [
        (FakeEngine({10: A, A: -1}), "server_error", "no number"),
        (FakeEngine(max_context_tokens=16), "invalid_prompt", "the prompt has 20 tokens"),
        (FakeEngine(seats=0, max_waiting=0), "rate_limit_exceeded", "queue is full"),
    ],
)
async def test_what_goes_wrong_is_told_by_the_response(
    engine: FakeEngine, code: str, words: str
) -> None:
    async with client(served(pieces=PIECES, engine=engine)) as http:
        started = await ask(http, background=True)
        answer = await final(http, started["id"])
        error = await refused(http, previous_response_id=started["id"])

    assert answer["status"] == "failed"
    assert answer["error"]["code"] == code
    assert words in answer["error"]["message"]
    assert error["code"] == "previous_response_not_ready"


async def test_only_so_many_run_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "MAX_RUNS", 2)
    engine = FakeEngine({10: A})
    async with client(served(pieces=PIECES, engine=engine)) as http:
        running = [await ask(http, background=True) for _ in range(2)]
        error = await refused(http, 429, background=True)
        for each in running:
            await http.post(f"/v1/responses/{each['id']}/cancel")
        after = await ask(http, background=True, max_output_tokens=1)

    assert "2 responses run in the background" in error["message"]
    assert after["status"] == "queued"


@pytest.mark.parametrize("stream", [False, True])
async def test_one_that_runs_is_one_of_its_keys_requests_at_the_same_time(stream: bool) -> None:
    engine = FakeEngine({10: A})
    app = make_app(served(pieces=PIECES, engine=engine), max_concurrent=2)
    async with client_of(app) as http:
        body = {"input": "p", "background": True, "stream": stream}
        first = Call(app, "/v1/responses", body)
        await first.until(b"response.queued" if stream else b"queued")
        second = await ask(http, background=True)
        error = await refused(http, 429, max_output_tokens=1)
        await http.post(f"/v1/responses/{second['id']}/cancel")
        after = await ask(http, max_output_tokens=1)
        first.leave()
        await engine.until(running=1)

    assert error["code"] == "too_many_concurrent"
    assert after["status"] == "incomplete"


async def test_one_that_takes_too_long_fails_and_is_freed() -> None:
    engine = FakeEngine({10: A})
    engine.pause()
    async with client(served(pieces=PIECES, engine=engine), request_timeout_s=0.05) as http:
        started = await ask(http, background=True)
        answer = await final(http, started["id"])

    assert answer["status"] == "failed"
    assert answer["error"]["code"] == "server_error"
    assert "within 0.05 s" in answer["error"]["message"]
    await engine.until(running=0)


async def test_events_without_room_are_given_up_and_the_response_goes_on() -> None:
    model = model_of()
    model.client.pause()
    app = make_app(model, response_store_bytes=8000)
    call = Call(app, "/v1/responses", {"input": "p", "background": True, "stream": True})
    await call.until(b"response.queued")
    model.client.resume()
    await call.end()
    response_id = call.data.split(b'"id":"')[1].split(b'"')[0].decode()
    async with client_of(app) as http:
        answer = await final(http, response_id)
        resumed = await http.get(f"/v1/responses/{response_id}?stream=true")

    last = parse_named_events(call.data)[-1]
    assert (last["type"], last["code"]) == ("error", "events_lost")
    assert answer["status"] == "completed"
    assert resumed.status_code == 400


async def test_a_shutdown_waits_for_runs_and_cuts_them_off_in_the_end() -> None:
    engine = FakeEngine({10: A})
    app = make_app(served(pieces=PIECES, engine=engine))
    drain = app.state.serving.drain
    async with client_of(app) as http:
        started = await ask(http, background=True)
        await engine.until(running=1)
        in_flight = drain.in_flight
        num_cut = await drain.finish(0)
        answer = await final(http, started["id"])
        error = await refused(http, 503, background=True)

    assert (in_flight, num_cut) == (1, 1)
    assert answer["status"] == "failed"
    assert "time to drain is over" in answer["error"]["message"]
    assert error["code"] == "shutting_down"
    await engine.until(running=0)


async def test_a_shutdown_lets_a_run_end_that_ends_in_time() -> None:
    model = model_of()
    model.client.pause()
    app = make_app(model)
    async with client_of(app) as http:
        started = await ask(http, background=True)
        ending = asyncio.create_task(app.state.serving.drain.finish(5))
        model.client.resume()
        num_cut = await ending
        answer = await final(http, started["id"])

    assert num_cut == 0
    assert answer["status"] == "completed"
