"""Clients that leave, engines that fail, servers that end: who is told what, and what is freed."""

import asyncio

import pytest
from starlette.applications import Starlette
from tests.fakes_text import EOT, FIRST_PIECE
from tests.server.asgi import Call, Json, client_of, complete, make_app, parse_events
from tests.server.fakes import FAILS, FakeEngine, Served, served

CHAT = "/v1/chat/completions"
P = 10
A, B = FIRST_PIECE, FIRST_PIECE + 1


def body(*, stream: bool, **fields: object) -> Json:
    messages = [{"role": "user", "content": "p"}]
    return {"model": "m", "messages": messages, "stream": stream, **fields}


def setting(model: Served, **settings: object) -> Starlette:
    return make_app(model, **{"commit_after_s": 0.0, **settings})


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_frees_its_request_at_once(stream: bool) -> None:
    """Keeps B41 out: docs/bugbank.md."""
    model = served()
    call = Call(setting(model), CHAT, body(stream=stream, n=3))
    await model.client.until(running=3)
    model.client.pause()

    call.leave()
    await call.end()

    assert model.client.stats().running == 0
    assert model.client.stats().free_blocks == 8
    assert b"[DONE]" not in call.data


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_the_queue_is_never_computed(stream: bool) -> None:
    """Keeps B42 out: docs/bugbank.md."""
    model = served({P: EOT}, engine=FakeEngine({P: EOT}, seats=1))
    model.client.pause()
    app = setting(model)
    first = Call(app, CHAT, body(stream=False))
    await model.client.until(running=1)
    second = Call(app, CHAT, body(stream=stream))
    await model.client.until(running=1, waiting=1)

    second.leave()
    await second.end()
    assert model.client.stats().waiting == 0

    third = Call(app, CHAT, body(stream=False))
    model.client.resume()
    await first.end()
    await third.end()
    assert (first.status, third.status) == (200, 200)
    assert model.client.said == 2


async def test_a_client_that_leaves_several_prompts_frees_all_of_them() -> None:
    model = served()
    prompts = {"model": "m", "prompt": ["a", "b", "c"], "max_tokens": None}
    call = Call(setting(model), "/v1/completions", prompts)
    await model.client.until(running=3)

    call.leave()
    await call.end()

    assert model.client.stats().running == 0


async def test_a_fault_in_mid_stream_is_an_event_and_harms_nobody_else() -> None:
    model = served({P: [A, B], A: FAILS, B: EOT}, pieces=("bad", "good"))
    app = setting(model)
    outcomes = set()
    for seed in range(8):
        call = Call(app, CHAT, body(stream=True, seed=seed))
        await call.end()
        events = parse_events(call.data)
        if "error" in events[-1]:
            assert call.status == 200
            assert events[-1] == {
                "error": {
                    "message": "no number",
                    "type": "server_error",
                    "param": None,
                    "code": "engine_error",
                }
            }
            assert events[-2]["choices"][0]["delta"] == {"content": "bad"}
            outcomes.add("bad")
        else:
            assert events[-2]["choices"][0]["delta"] == {"content": "good"}
            outcomes.add("good")
    assert outcomes == {"bad", "good"}


async def test_the_same_fault_is_a_500_when_nothing_was_sent() -> None:
    response = await complete(served({ord("p"): A, A: FAILS}, pieces=("bad",)))

    assert response.status_code == 500
    assert response.json()["error"]["message"] == "no number"
    assert response.json()["error"]["code"] == "engine_error"


async def test_a_fault_of_one_choice_cancels_the_others() -> None:
    model = served({P: [A, B], A: FAILS}, pieces=("bad", "good"))

    call = Call(setting(model), CHAT, body(stream=False, n=16, seed=1))
    await call.end()

    assert call.status == 500
    assert model.client.stats().running == 0


async def test_a_full_queue_is_a_429_with_a_time_to_come_back() -> None:
    model = served(engine=FakeEngine(seats=0, max_waiting=0))
    app = make_app(model)
    for stream in (False, True):
        async with client_of(app) as http:
            response = await http.post(CHAT, json=body(stream=stream))

        assert response.status_code == 429
        assert response.headers["retry-after"] == "3"
        assert response.json()["error"]["code"] == "queue_full"


async def test_a_stream_that_waits_long_is_opened_and_kept_open() -> None:
    model = served({P: EOT})
    model.client.pause()
    call = Call(setting(model, ping_s=0.001), CHAT, body(stream=True))

    await call.until(b": still working\n\n")
    model.client.resume()
    await call.end()

    assert call.status == 200
    first, last = parse_events(call.data)
    assert first["choices"][0]["delta"]["role"] == "assistant"
    assert last["choices"][0]["finish_reason"] == "stop"


async def test_draining_lets_streams_end_and_takes_nothing_new() -> None:
    """Keeps B91 out: docs/bugbank.md."""
    model = served({P: A, A: B, B: EOT}, pieces=("one", "two"))
    app = setting(model)
    drain = app.state.serving.drain
    stream = Call(app, CHAT, body(stream=True))
    await stream.until(b"one")
    model.client.pause()

    drain.begin()
    late = Call(app, CHAT, body(stream=True))
    await late.end()
    model.client.resume()
    num_cut = await drain.finish(5)
    await stream.end()

    assert num_cut == 0
    assert late.status == 503
    assert b"shutting_down" in late.data
    assert parse_events(stream.data)[-1]["choices"][0]["finish_reason"] == "stop"


async def test_what_is_not_done_in_time_is_told_so() -> None:
    model = served()
    app = setting(model)
    stream = Call(app, CHAT, body(stream=True))
    await stream.until(b"assistant")
    model.client.pause()
    whole = Call(app, CHAT, body(stream=False))
    await model.client.until(running=2)

    num_cut = await app.state.serving.drain.finish(0)
    await stream.end()
    await whole.end()

    assert num_cut == 2
    assert parse_events(stream.data)[-1]["error"]["code"] == "shutting_down"
    assert whole.status == 503
    assert b"time to drain is over" in whole.data
    assert model.client.stats().running == 0
    assert app.state.serving.drain.in_flight == 0


async def test_a_task_that_is_cancelled_from_outside_stays_cancelled() -> None:
    model = served()
    call = Call(setting(model), CHAT, body(stream=True))
    await model.client.until(running=1)

    call.task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await call.task
    assert call.task.cancelled()
    assert model.client.stats().running == 0


async def test_requests_of_one_client_id_do_not_share_anything() -> None:
    """Keeps B44 out: docs/bugbank.md."""
    model = served({P: A, A: EOT}, pieces=("one",))
    app = setting(model)
    calls = [Call(app, CHAT, body(stream=True), **{"x-request-id": "same"}) for _ in range(2)]
    for call in calls:
        await call.end()

    first, second = (parse_events(call.data) for call in calls)
    assert first[0]["id"] != second[0]["id"]
    assert len({request.id for request in model.client.submitted}) == 2


@pytest.mark.parametrize(
    ("given", "shown"),
    [("abc-1.2:3", True), ("x" * 128, True), ("x" * 129, False), ("a b", False), ("ä", False)],
)
async def test_a_clients_id_is_shown_when_it_is_short_and_plain(given: str, shown: bool) -> None:
    async with client_of(make_app(served())) as http:
        response = await http.get("/health", headers={b"x-request-id": given.encode("latin-1")})

    assert (response.headers["x-request-id"] == given) is shown
