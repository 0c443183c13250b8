"""Marks and retentions of a request become pins at the right token."""

from typing import Any

import pytest
from tests.fakes_text import CHATML
from tests.server.asgi import Json, chat, client, complete
from tests.server.fakes import FakeEngine, Served, served

from kokuban.core.request import Pin

EPHEMERAL: Json = {"type": "ephemeral"}
HOUR: Json = {"type": "ephemeral", "ttl": "1h"}
POINT: Json = {"mode": "explicit"}
TOOLS_FIRST = "{{ tools | tojson }}" + CHATML


def tool(name: str, **fields: Any) -> Json:
    return {"type": "function", "function": {"name": name}, **fields}


async def send(model: Served, messages: list[Json], **fields: Any) -> list[tuple[str, float]]:
    """What is pinned: the text, and for how many seconds."""
    body = {"model": "m", "messages": messages, "max_tokens": 1, **fields}
    async with client(model) as http:
        response = await http.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    [request] = model.client.submitted
    decode = model.tokenizer.decode
    return [
        (decode(request.prompt_token_ids[: pin.num_tokens], skip_special=False), pin.ttl_s)
        for pin in request.pins
    ]


async def test_a_request_without_marks_pins_nothing() -> None:
    assert await send(served(), [{"role": "user", "content": "q"}]) == []


async def test_marks_on_messages_and_parts_pin_what_ends_with_them() -> None:
    found = await send(
        served(),
        [
            {"role": "system", "content": "be", "cache_control": HOUR},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "long", "prompt_cache_breakpoint": POINT},
                    {"type": "text", "text": "more", "cache_control": EPHEMERAL},
                ],
            },
            {"role": "assistant", "content": "a"},
            {"role": "user", "content": "q"},
        ],
    )

    system = "<|im_start|>system\nbe<|im_end|>\n"
    part = f"{system}<|im_start|>user\nlong"
    assert found == [(system, 3600.0), (part, 1800.0), (f"{part}\nmore<|im_end|>\n", 300.0)]


async def test_a_mark_on_a_tool_pins_all_tools_and_one_on_a_call_its_message() -> None:
    call = {"type": "function", "function": {"name": "f"}, "cache_control": EPHEMERAL}
    messages = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "c", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "r"},
    ]
    tools = [tool("f"), tool("g", cache_control=HOUR)]

    found = await send(served(template=TOOLS_FIRST), messages, tools=tools)

    said = '[{"type": "function", "function": {"name": "f"}}, '
    said += '{"type": "function", "function": {"name": "g"}}]<|im_start|>user\n'
    turns = said + "q<|im_end|>\n<|im_start|>assistant\nc\n<tool_call>\n"
    turns += '{"name": "f", "arguments": {}}\n</tool_call><|im_end|>\n'
    assert found == [(said, 3600.0), (turns, 300.0)]


async def test_marks_never_change_the_prompt() -> None:
    """A template that shows whole messages and tools would show the marks too."""
    template = "{{ tools | tojson }}{{ messages | tojson }}"
    plain, marked = served(template=template), served(template=template)
    part = {"type": "text", "text": "q"}
    both = {"cache_control": EPHEMERAL, "prompt_cache_breakpoint": POINT}

    await send(plain, [{"role": "user", "content": [part]}], tools=[tool("f")])
    await send(
        marked,
        [{"role": "user", "content": [{**part, **both}], "cache_control": HOUR}],
        tools=[{**tool("f", cache_control=None), **both}],
    )

    [one], [other] = plain.client.submitted, marked.client.submitted
    assert one.prompt_token_ids == other.prompt_token_ids
    async with client(marked) as http:
        body = {
            "messages": [{"role": "user", "content": "q", **both}],
            "tools": [tool("f", **both)],
        }
        with_marks = (await http.post("/tokenize", json=body)).json()
        body = {"messages": [{"role": "user", "content": "q"}], "tools": [tool("f")]}
        assert (await http.post("/tokenize", json=body)).json() == with_marks


@pytest.mark.parametrize(
    ("fields", "ttl_s"),
    [
        ({"prompt_cache_options": {}}, 1800.0),
        ({"prompt_cache_options": {"mode": "implicit", "ttl": "30m"}}, 1800.0),
        ({"prompt_cache_options": {"mode": "explicit"}}, None),
        ({"prompt_cache_retention": "24h"}, 86_400.0),
        ({"prompt_cache_retention": "in_memory"}, None),
        ({"prompt_cache_retention": "24h", "prompt_cache_options": {}}, 86_400.0),
        ({"prompt_cache_retention": "24h", "prompt_cache_options": {"mode": "explicit"}}, None),
        ({"cache_control": EPHEMERAL}, 300.0),
        ({"cache_control": HOUR, "prompt_cache_options": {}}, 3600.0),
        ({"cache_control": None, "prompt_cache_options": None}, None),
    ],
)
async def test_what_is_asked_for_a_whole_prompt(fields: Json, ttl_s: float | None) -> None:
    talk, text = served(), served()

    assert (await chat(talk, max_tokens=1, **fields)).status_code == 200
    assert (await complete(text, ["ab", "cde"], max_tokens=1, **fields)).status_code == 200

    for request in (*talk.client.submitted, *text.client.submitted):
        expected = () if ttl_s is None else (Pin(len(request.prompt_token_ids), ttl_s),)
        assert request.pins == expected


async def test_a_breakpoint_with_a_long_retention_lasts_as_long_and_nothing_else_is_pinned() -> (
    None
):
    part = {"type": "text", "text": "a", "prompt_cache_breakpoint": POINT}
    messages = [{"role": "user", "content": [part, {"type": "text", "text": "b"}]}]

    found = await send(served(), messages, prompt_cache_retention="24h")

    assert found == [("<|im_start|>user\na", 86_400.0)]


@pytest.mark.parametrize(
    ("options", "expected"), [(None, "cdef"), ({"mode": "explicit"}, "cdef"), ({}, "def*")]
)
async def test_the_last_four_breakpoints_count_and_the_implicit_one_is_one(
    options: Json | None, expected: str
) -> None:
    parts = [{"type": "text", "text": c, "prompt_cache_breakpoint": POINT} for c in "abcdef"]
    messages = [{"role": "user", "content": [*parts, {"type": "text", "text": "q"}]}]

    found = await send(served(), messages, prompt_cache_options=options)

    ends = [text[-1] if text[-1] != "\n" else "*" for text, _ in found]
    assert "".join(ends) == expected


async def test_more_than_four_cache_controls_are_refused() -> None:
    marked = {"role": "user", "content": "q", "cache_control": EPHEMERAL}
    model = served()
    body = {"model": "m", "messages": [marked] * 4, "max_tokens": 1}
    async with client(model) as http:
        taken = await http.post("/v1/chat/completions", json=body)
        refused = await http.post("/v1/chat/completions", json={**body, "cache_control": HOUR})

    assert taken.status_code == 200
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "cache_control"
    assert "5 cache_control marks; a request may have 4" in refused.json()["error"]["message"]
    assert len(model.client.submitted) == 1


MESSAGE: Json = {"role": "user", "content": "q"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"cache_control": {"type": "forever"}}, "cache_control.type"),
        ({"cache_control": {}}, "cache_control.type"),
        ({"cache_control": {"type": "ephemeral", "ttl": "2h"}}, "cache_control.ttl"),
        ({"cache_control": True}, "cache_control"),
        ({"prompt_cache_options": {"mode": "never"}}, "prompt_cache_options.mode"),
        ({"prompt_cache_options": {"ttl": "1h"}}, "prompt_cache_options.ttl"),
        ({"prompt_cache_retention": "1h"}, "prompt_cache_retention"),
        ({"messages": [{**MESSAGE, "cache_control": {}}]}, "messages[0].cache_control.type"),
        (
            {"messages": [{**MESSAGE, "prompt_cache_breakpoint": {"mode": "implicit"}}]},
            "messages[0].prompt_cache_breakpoint.mode",
        ),
        ({"tools": [tool("f", cache_control={"type": 1})]}, "tools[0].cache_control.type"),
    ],
)
async def test_a_mark_that_is_none_is_refused_by_name(fields: Json, param: str) -> None:
    model = served()
    body = {"model": "m", "messages": [MESSAGE], **fields}
    async with client(model) as http:
        response = await http.post("/v1/chat/completions", json=body)

    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    assert model.client.submitted == []


async def test_a_long_conversation_is_marked_off_the_loop_with_the_same_result() -> None:
    model = served(engine=FakeEngine(max_context_tokens=10**6))
    long = {"role": "user", "content": "p" * 20_000, "cache_control": EPHEMERAL}

    [(text, _)] = await send(model, [long, {"role": "user", "content": "q"}])

    assert text == "<|im_start|>user\n" + "p" * 20_000 + "<|im_end|>\n"
