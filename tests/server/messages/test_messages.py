"""/v1/messages and count_tokens over HTTP, without a client library."""

import json
from itertools import pairwise
from typing import Any

import httpx
import pytest
from tests.fakes_text import EOT
from tests.server.asgi import Call, Json, client, make_app
from tests.server.fakes import FAILS, FakeEngine, Served, served
from tests.server.live import CHAIN, PIECES, A

from kokuban.core.step import Usage

PATH = "/v1/messages"


def body(*messages: Json, **fields: Any) -> Json:
    return {
        "model": "m",
        "max_tokens": 16,
        "messages": list(messages) or [{"role": "user", "content": "p"}],
        **fields,
    }


async def send(model: Served, *messages: Json, **fields: Any) -> httpx.Response:
    async with client(model) as http:
        return await http.post(PATH, json=body(*messages, **fields))


def events_of(data: bytes) -> list[Json]:
    """The data of every event; checks the framing and that each is called what its type says."""
    *pieces, rest = data.split(b"\n\n")
    assert rest == b""
    found = []
    for piece in pieces:
        name, _, line = piece.decode().partition("\n")
        event: Json = json.loads(line.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert line.startswith("data: ")
        found.append(event)
    return found


def speaking(usage: Usage | None = None, **engine: Any) -> Served:
    """Says "Hello world!!" and ends."""
    chain = {10: A, A: A + 1, A + 1: A + 2, A + 2: EOT}
    return served(pieces=PIECES, engine=FakeEngine(chain, usage=usage, **engine))


async def test_a_whole_answer() -> None:
    response = await send(speaking())

    assert response.status_code == 200
    answer = response.json()
    assert answer["id"] == f"msg_{response.headers['request-id']}"
    usage = answer.pop("usage")
    del answer["id"]
    assert answer == {
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [{"type": "text", "text": "Hello world!!"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
    }
    prompt = len("<user\np>\n<assistant\n")  # Each mark of the template is one token.
    assert (usage["input_tokens"], usage["output_tokens"]) == (prompt, 4)


async def test_a_streamed_answer() -> None:
    response = await send(speaking(), stream=True)

    assert response.headers["content-type"].startswith("text/event-stream")
    events = events_of(response.content)
    assert [event["type"] for event in events] == [
        "message_start",
        "ping",
        "content_block_start",
        *["content_block_delta"] * 3,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    start, _, block, *deltas, block_stop, ended, _ = events
    assert start["message"]["content"] == []
    assert start["message"]["stop_reason"] is None
    assert start["message"]["usage"]["output_tokens"] == 0
    assert block == {
        "type": "content_block_start",
        "index": 0,
        "content_block": {"type": "text", "text": ""},
    }
    assert [delta["delta"] for delta in deltas] == [
        {"type": "text_delta", "text": text} for text in PIECES
    ]
    assert block_stop == {"type": "content_block_stop", "index": 0}
    assert ended["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert ended["usage"]["output_tokens"] == 4


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "engine", "expected"),
    [
        ({"stop_sequences": ["x", "!!"]}, {}, ("stop_sequence", "!!")),
        ({"max_tokens": 2}, {}, ("max_tokens", None)),
        ({}, {"max_context_tokens": 30}, ("model_context_window_exceeded", None)),
        ({"max_tokens": 4}, {}, ("end_turn", None)),
    ],
)
async def test_why_an_answer_ended(
    stream: bool, fields: Json, engine: Json, expected: tuple[str, str | None]
) -> None:
    model = speaking(**engine)
    filler = "p" * 9 if engine else "p"  # Then two tokens have room.

    response = await send(model, {"role": "user", "content": filler}, stream=stream, **fields)

    told = events_of(response.content)[-2]["delta"] if stream else response.json()
    assert (told["stop_reason"], told["stop_sequence"]) == expected


async def test_an_answer_without_a_word_has_one_empty_block() -> None:
    """Clients look at the first block without asking whether there is one."""
    model = served({10: EOT})

    whole = (await send(model)).json()
    events = events_of((await send(model, stream=True)).content)

    assert (whole["content"], whole["stop_reason"]) == ([{"type": "text", "text": ""}], "end_turn")
    assert [event["type"] for event in events] == [
        "message_start",
        "ping",
        "content_block_start",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]


@pytest.mark.parametrize(
    ("marks", "written"), [({}, 0), ({"cache_control": {"type": "ephemeral"}}, 5)]
)
async def test_three_counts_add_up_to_the_prompt(marks: Json, written: int) -> None:
    """What the cache takes is told to those who asked it to take something."""
    usage = Usage(0, 0, cached_tokens=7, cache_write_tokens=5)

    whole = (await send(speaking(usage), **marks)).json()["usage"]
    events = events_of((await send(speaking(usage), stream=True, **marks)).content)

    for found in (whole, events[0]["message"]["usage"], events[-2]["usage"]):
        assert found["cache_read_input_tokens"] == 7
        assert found["cache_creation_input_tokens"] == written
        assert found["input_tokens"] == 20 - 7 - written
        assert found["kokuban"]["cached_pool_tokens"] == 7


async def test_a_prefilled_answer_goes_on_where_it_was() -> None:
    model = served({ord("("): A, A: EOT}, pieces=PIECES)

    answer = await send(
        model, {"role": "user", "content": "q"}, {"role": "assistant", "content": "Say ("}
    )

    [request] = model.client.submitted
    prompt = model.tokenizer.decode(request.prompt_token_ids, skip_special=False)
    assert prompt.endswith("<|im_start|>assistant\nSay (")
    assert answer.json()["content"] == [{"type": "text", "text": "Hello"}]


async def test_both_apis_make_the_same_prompt() -> None:
    model = speaking()
    async with client(model) as http:
        await http.post(PATH, json=body({"role": "user", "content": "q"}, system="be brief"))
        messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "q"}]
        await http.post("/v1/chat/completions", json={"model": "m", "messages": messages})

    one, other = model.client.submitted
    assert one.prompt_token_ids == other.prompt_token_ids


async def test_a_turn_begins_with_the_one_before() -> None:
    """Whatever the client moves: marks, texts that become blocks, Claude Code's billing line."""
    billing = "x-anthropic-billing-header: cc_version=2.1; cch={};"
    mark = {"cache_control": {"type": "ephemeral"}}
    call = {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "r"}
    you = {"type": "text", "text": "You are"}
    turns: list[list[Json]] = [
        [{"role": "user", "content": "q"}],
        [{"role": "user", "content": [{"type": "text", "text": "q"}]},
         {"role": "assistant", "content": [{"type": "text", "text": "ok"}, call]},
         {"role": "user", "content": [{**result, **mark}]}],
        [{"role": "user", "content": "q"},
         {"role": "assistant", "content": [{"type": "text", "text": "ok"}, call]},
         {"role": "user", "content": [result]},
         {"role": "assistant", "content": "done"},
         {"role": "user", "content": [{"type": "text", "text": "more", **mark}]}],
    ]  # fmt: skip
    model = speaking()
    async with client(model) as http:
        for number, messages in enumerate(turns):
            system = [{"type": "text", "text": billing.format(number)}, {**you, **mark}]
            response = await http.post(PATH, json=body(*messages, system=system, max_tokens=1))
            assert response.status_code == 200, response.text

    prompts = [request.prompt_token_ids for request in model.client.submitted]
    generation = len("<assistant\n")
    for shorter, longer in pairwise(prompts):
        assert longer[: len(shorter) - generation] == shorter[:-generation]


async def test_the_operator_may_keep_the_billing_line() -> None:
    model = speaking()
    system = "x-anthropic-billing-header: cch=1;\nYou are"
    async with client(model, keep_billing_line=True) as http:
        await http.post(PATH, json=body(system=system))
    async with client(model) as http:
        await http.post(PATH, json=body(system=system))

    kept, removed = (
        model.tokenizer.decode(request.prompt_token_ids, skip_special=True)
        for request in model.client.submitted
    )
    assert "cch=1" in kept
    assert "cch=1" not in removed


async def test_marks_pin_what_they_stand_behind() -> None:
    model = speaking()
    system = [{"type": "text", "text": "be", "cache_control": {"type": "ephemeral", "ttl": "1h"}}]

    await send(model, system=system)

    [request] = model.client.submitted
    [pin] = request.pins
    told = model.tokenizer.decode(request.prompt_token_ids[: pin.num_tokens], skip_special=False)
    assert (told, pin.ttl_s) == ("<|im_start|>system\nbe<|im_end|>\n", 3600.0)


async def test_tokens_are_counted_as_they_would_be_computed() -> None:
    model = speaking()
    fields = {"system": "be", "messages": [{"role": "user", "content": "p"}], "model": "m"}
    async with client(model) as http:
        counted = await http.post(f"{PATH}/count_tokens", json=fields)
        await http.post(PATH, json={**fields, "max_tokens": 1})

    [request] = model.client.submitted
    assert counted.json() == {"input_tokens": len(request.prompt_token_ids)}


@pytest.mark.parametrize("path", [PATH, f"{PATH}/count_tokens"])
@pytest.mark.parametrize(
    ("raw", "status", "kind", "message"),
    [
        (b"{", 400, "invalid_request_error", "not JSON"),
        (b'{"model": "m", "max_tokens": 1}', 400, "invalid_request_error", "messages"),
        (json.dumps(body(model="no")).encode(), 404, "not_found_error", "'no'"),
        (json.dumps(body(mcp_servers=[1])).encode(), 400, "invalid_request_error", "mcp_servers"),
        (b'{"x": "' + b"x" * 2000 + b'"}', 413, "request_too_large", "--max-body-size"),
    ],
)
async def test_errors_have_anthropics_envelope(
    path: str, raw: bytes, status: int, kind: str, message: str
) -> None:
    async with client(speaking(), max_body_bytes=1000) as http:
        response = await http.post(path, content=raw, headers={"content-type": "application/json"})

    found = response.json()
    assert response.status_code == status
    assert (found["type"], found["error"]["type"]) == ("error", kind)
    assert message in found["error"]["message"]
    assert found["request_id"] == response.headers["request-id"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temperature": 3}, "temperature"),
        ({"stop_sequences": ["x"] * 17}, "stop_sequences has 17 strings; the limit is 16"),
    ],
)
async def test_a_value_out_of_range_is_named_as_the_client_does(fields: Json, message: str) -> None:
    response = await send(speaking(), **fields)

    assert response.status_code == 400
    assert message in response.json()["error"]["message"]


async def test_a_full_queue_and_a_prompt_that_is_too_long() -> None:
    full = speaking(seats=0, max_waiting=0)
    short = speaking(max_context_tokens=10)
    for stream in (False, True):
        busy = await send(full, stream=stream)
        long = await send(short, stream=stream)

        assert (busy.status_code, busy.headers["retry-after"]) == (429, "3")
        assert busy.json()["error"]["type"] == "rate_limit_error"
        assert long.status_code == 400
        assert long.json()["error"]["type"] == "invalid_request_error"
        assert long.json()["error"]["message"].startswith("prompt is too long: ")


SUM: Json = {"name": "sum", "input_schema": {"type": "object", "required": ["a"],
                                             "properties": {"a": {"type": "integer"}}}}  # fmt: skip


@pytest.mark.parametrize("choice", ["auto", "none", "any"])
async def test_tools_that_may_not_be_called_are_not_counted(choice: str) -> None:
    model = speaking()
    fields = body(tools=[SUM], tool_choice={"type": choice})
    async with client(model, tool_parser="hermes") as http:
        counted = await http.post(f"{PATH}/count_tokens", json=fields)
        assert (await http.post(PATH, json=fields)).status_code == 200
        bare = await http.post(f"{PATH}/count_tokens", json=body())

    [request] = model.client.submitted
    assert counted.json() == {"input_tokens": len(request.prompt_token_ids)}
    assert (counted.json() == bare.json()) == (choice == "none")


@pytest.mark.parametrize(
    ("choice", "is_forced"),
    [
        ({"type": "auto"}, False),
        ({"type": "any"}, True),
        ({"type": "tool", "name": "sum"}, True),
    ],
)
async def test_a_call_can_be_forced(choice: Json, is_forced: bool) -> None:
    model = speaking()
    async with client(model, tool_parser="hermes") as http:
        response = await http.post(PATH, json=body(tools=[SUM], tool_choice=choice))

    assert response.status_code == 200
    [request] = model.client.submitted
    assert (request.params.grammar is not None) == is_forced


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [SUM], "tool_choice": {"type": "tool", "name": "zip"}}, "tool_choice"),
        (
            {"tools": [{"name": "f", "input_schema": {"type": "nothing"}}],
             "tool_choice": {"type": "any"}},
            "the tool 'f'",
        ),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {"type": "nothing"}}}},
            "output_config.format",
        ),
    ],
)  # fmt: skip
async def test_what_cannot_be_forced_is_refused_in_the_clients_words(
    fields: Json, name: str
) -> None:
    async with client(speaking(), tool_parser="hermes") as http:
        response = await http.post(PATH, json=body(**fields))

    assert response.status_code == 400
    assert name in response.json()["error"]["message"]


@pytest.mark.parametrize("path", [PATH, f"{PATH}/count_tokens"])
async def test_fields_that_nobody_knows_are_named(path: str) -> None:
    known = body(
        thinking={"type": "adaptive", "display": "omitted"},
        context_management={"edits": []},
        metadata={"user_id": "u"},
        output_config={"effort": "high"},
    )
    async with client(speaking()) as http:
        quiet = await http.post(path, json=known)
        named = await http.post(path, json={**known, "max_token": 1})
    async with client(speaking(), strict=True) as http:
        taken = await http.post(path, json=known)
        refused = await http.post(path, json={**known, "sytem": 1})

    assert (quiet.status_code, quiet.headers.get("x-kokuban-warning")) == (200, None)
    assert named.headers["x-kokuban-warning"] == "unknown fields: max_token"
    assert taken.status_code == 200
    assert refused.status_code == 400
    assert "did you mean 'system'?" in refused.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
async def test_thoughts_are_a_block_of_their_own(stream: bool) -> None:
    pieces = ("<think>\nhm", "\n</think>\n\n", "Well.")
    model = served({10: A, A: A + 1, A + 1: A + 2, A + 2: EOT}, pieces=pieces)
    async with client(model, reasoning_parser="think") as http:
        response = await http.post(PATH, json=body(stream=stream))

    if not stream:
        assert response.json()["content"] == [
            {"type": "thinking", "thinking": "hm", "signature": "kokuban"},
            {"type": "text", "text": "Well."},
        ]
        return
    events = events_of(response.content)
    kinds = [event.get("delta", {}).get("type") for event in events if "index" in event]
    assert kinds == [None, "thinking_delta", "signature_delta", None, None, "text_delta", None]


async def test_thoughts_of_an_earlier_turn_are_shown_to_the_template() -> None:
    template = (
        "{% for m in messages %}<{{ m.role }}>{% if m.reasoning_content %}"
        "({{ m.reasoning_content }}){% endif %}{{ m.content }}{% endfor %}"
    )
    model = served(template=template)
    thought = {"type": "thinking", "thinking": "hm", "signature": "kokuban"}
    said = {"role": "assistant", "content": [thought, {"type": "text", "text": "a"}]}

    turns: list[Json] = [{"role": "user", "content": "q"}, said, {"role": "user", "content": "r"}]
    await send(model, *turns, max_tokens=1)

    [request] = model.client.submitted
    prompt = model.tokenizer.decode(request.prompt_token_ids, skip_special=False)
    assert prompt == "<user>q<assistant>(hm)a<user>r"


async def test_an_engine_that_fails_is_an_api_error() -> None:
    response = await send(served({10: FAILS}))

    assert response.status_code == 500
    assert response.json()["error"]["type"] == "api_error"


async def test_an_error_in_mid_stream_is_the_last_event_behind_the_end_of_the_block() -> None:
    model = served({10: A, A: FAILS}, pieces=PIECES)
    async with client(model) as http:
        response = await http.post(PATH, json=body(stream=True), headers={"x-request-id": "mine"})

    *_, end, last = events_of(response.content)
    assert end["type"] == "content_block_stop"
    assert last["type"] == "error"
    assert last["error"]["type"] == "api_error"
    assert "no number" in last["error"]["message"]
    assert last["request_id"] == response.headers["request-id"] == "mine"


async def test_a_silent_stream_gets_pings() -> None:
    model = speaking()
    model.client.pause()
    app = make_app(model, commit_after_s=0, ping_s=0)
    call = Call(app, PATH, body(stream=True))

    await call.until(b'event: ping\ndata: {"type":"ping"}\n\n' * 3)
    model.client.resume()
    await call.end()

    assert events_of(call.data)[-1]["type"] == "message_stop"
    assert events_of(call.data)[-2]["usage"]["output_tokens"] == 4


async def test_a_client_that_leaves_ends_its_request() -> None:
    model = served(CHAIN, pieces=PIECES, engine=FakeEngine({10: A}))
    call = Call(make_app(model), PATH, body(stream=True, max_tokens=4000))

    await call.until(b"text_delta")
    call.leave()
    await call.end()

    await model.client.until(running=0)


async def test_the_description_has_the_routes() -> None:
    async with client(speaking()) as http:
        document = (await http.get("/openapi.json")).json()

    post = document["paths"][PATH]["post"]
    assert "text/event-stream" in post["responses"]["200"]["content"]
    schemas = document["components"]["schemas"]
    assert "max_tokens" in schemas["MessagesRequest"]["required"]
    assert schemas["MessagesError"]["required"] == ["type", "error", "request_id"]
    [error] = post["responses"]["400"]["content"].values()
    assert error["schema"]["$ref"].endswith("/MessagesError")
    counted = document["paths"][f"{PATH}/count_tokens"]["post"]["responses"]["200"]["content"]
    assert counted["application/json"]["schema"]["$ref"].endswith("/TokenCount")


ALTERNATING = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}<{{ m.role }}>{{ m.content }}"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (ALTERNATING, "<user>q\nbe brief<assistant>"),
        (ALTERNATING.replace("raise_exception('roles must alternate')", "''"),
         "<user>q<system>be brief<assistant>"),
    ],
)  # fmt: skip
async def test_a_late_system_message_goes_where_the_template_takes_it(
    template: str, expected: str
) -> None:
    model = served(template=template)

    response = await send(
        model, {"role": "user", "content": "q"}, {"role": "system", "content": "be brief"},
        max_tokens=1,
    )  # fmt: skip

    assert response.status_code == 200
    [request] = model.client.submitted
    assert model.tokenizer.decode(request.prompt_token_ids, skip_special=False) == expected
