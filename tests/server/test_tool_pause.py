"""An answer that calls tools pauses its session, before the client knows that it has ended."""

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from tests.fakes_text import EOT, FIRST_PIECE
from tests.server.asgi import Call, Json, chat, client, events_of, make_app
from tests.server.fakes import FakeEngine, Served, served

from kokuban.core.session import SessionStatus

P = 10
CALL, TEXT, OTHER, HEAD, TAIL = range(FIRST_PIECE, FIRST_PIECE + 5)
PIECES = (
    '<tool_call>{"name": "weather", "arguments": {}}</tool_call>',
    "It is fine.",
    '<tool_call>{"name": "search", "arguments": {}}</tool_call>',
    '<tool_call>{"name": "wea',
    'ther", "arguments": {}}</tool_call>',
)
TOOLS = [{"type": "function", "function": {"name": name}} for name in ("weather", "search")]


def model_of(*answer: int, **options: Any) -> Served:
    """A model that says these tokens and ends."""
    says = (P, *answer, EOT)
    chain = dict(pairwise(says))
    return served(pieces=PIECES, engine=FakeEngine(chain, **options))


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_calls_a_tool_pauses_its_session(stream: bool) -> None:
    model = model_of(HEAD, TAIL)

    response = await chat(model, tools=TOOLS, prompt_cache_key="s", stream=stream)

    assert model.client.pauses == [("", "s", None, ("weather",))]
    choices = events_of(response) if stream else [response.json()]
    assert choices[-1]["choices"][0]["finish_reason"] == "tool_calls"


async def test_all_tools_that_are_called_are_named_once() -> None:
    model = model_of(CALL, OTHER, HEAD, TAIL)

    await chat(model, tools=TOOLS, prompt_cache_key="s", n=2)

    assert model.client.pauses == [("", "s", None, ("search", "weather"))]


@pytest.mark.parametrize(
    ("answer", "fields"),
    [
        ((TEXT,), {}),
        ((CALL,), {"prompt_cache_key": None}),
        ((CALL,), {"tools": None}),
        ((CALL,), {"tools": TOOLS[1:]}),
        ((CALL,), {"tool_choice": "none"}),
        ((CALL, TEXT), {"max_tokens": 1}),
    ],
)
async def test_without_a_call_an_offer_a_session_or_an_end_nothing_is_paused(
    answer: tuple[int, ...], fields: Json
) -> None:
    model = model_of(*answer)

    response = await chat(model, **{"tools": TOOLS, "prompt_cache_key": "s", **fields})

    assert response.status_code == 200
    assert model.client.pauses == []


class Slow(FakeEngine):
    """Takes its time for a pause."""

    def __init__(self, **options: Any) -> None:
        super().__init__({P: CALL, CALL: EOT}, **options)
        self.asked, self.may_go_on = asyncio.Event(), asyncio.Event()

    async def pause_session(self, *args: Any, **options: Any) -> SessionStatus | None:
        self.asked.set()
        await self.may_go_on.wait()
        return await super().pause_session(*args, **options)


async def test_the_pause_comes_before_the_end_of_the_answer_and_is_the_keys_own() -> None:
    engine = Slow()
    app = make_app(served(pieces=PIECES, engine=engine), api_keys=("one", "two"))
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "p"}],
        "tools": TOOLS,
        "stream": True,
    }
    headers = {"authorization": "Bearer two", "x-session-id": "s"}
    call = Call(app, "/v1/chat/completions", body, **headers)
    async with asyncio.timeout(5):
        await engine.asked.wait()
    assert b"weather" in call.data
    assert b'"finish_reason":"tool_calls"' not in call.data
    engine.may_go_on.set()
    await call.end()

    assert b'"finish_reason":"tool_calls"' in call.data
    [request] = engine.submitted
    assert engine.pauses == [(request.tenant, "s", None, ("weather",))]
    assert request.tenant


async def test_a_client_that_leaves_during_the_pause_ends_its_request() -> None:
    engine = Slow()
    body = {"model": "m", "messages": [{"role": "user", "content": "p"}], "tools": TOOLS}
    app = make_app(served(pieces=PIECES, engine=engine))
    call = Call(app, "/v1/chat/completions", body, **{"x-session-id": "s"})
    async with asyncio.timeout(5):
        await engine.asked.wait()
    call.leave()
    await call.end()

    assert app.state.serving.drain.in_flight == 0
    await engine.until(running=0)


async def test_an_answer_that_failed_pauses_nothing() -> None:
    model = served({P: CALL, CALL: -1}, pieces=PIECES)

    response = await chat(model, tools=TOOLS, prompt_cache_key="s")

    assert response.status_code == 500
    assert model.client.pauses == []


async def test_a_pause_that_fails_does_not_fail_the_answer() -> None:
    class Dying(FakeEngine):
        async def pause_session(self, *args: Any, **options: Any) -> SessionStatus | None:
            self.dead = True
            return await super().pause_session(*args, **options)

    model = served(pieces=PIECES, engine=Dying({P: CALL, CALL: EOT}))

    response = await chat(model, tools=TOOLS, prompt_cache_key="s")

    assert response.status_code == 200
    [call] = response.json()["choices"][0]["message"]["tool_calls"]
    assert call["function"] == {"name": "weather", "arguments": "{}"}


async def test_sessions_reach_web_pages_that_may_call() -> None:
    async with client(served(), cors_origins=("http://page",)) as http:
        asked = {
            "origin": "http://page",
            "access-control-request-method": "DELETE",
            "access-control-request-headers": "x-session-id",
        }
        response = await http.options("/v1/sessions/s", headers=asked)

    assert response.status_code == 200
    assert "DELETE" in response.headers["access-control-allow-methods"]
