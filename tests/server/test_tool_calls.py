"""Tool calls and thoughts in the answers of /v1/chat/completions."""

import json
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from tests.fakes_text import CHATML, EOT, FIRST_PIECE
from tests.server.asgi import Json, chat, events_of
from tests.server.fakes import FakeEngine, Served, served

P = 10  # The newline after "assistant", with which the fake template ends.
TOOLS = [{"type": "function", "function": {"name": name}} for name in ("f", "g")]
QWEN = "{# <tool_call> </think> #}" + CHATML


def tagged(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def saying(
    *texts: str, template: str = QWEN, per_event: int = 1, last: int = P, **options: Any
) -> Served:
    """A model that says these texts, a token each, and ends.

    Args:
        last: the last token of the prompt.
    """
    ids = range(FIRST_PIECE, FIRST_PIECE + len(texts))
    engine = FakeEngine(dict(pairwise((last, *ids, EOT))), tokens_per_event=per_event, **options)
    return served(pieces=texts, engine=engine, template=template)


def put_together(events: Sequence[Json], index: int = 0) -> tuple[Json, list[str]]:
    """The message that a client builds from a stream, and the ends that it was told."""
    message: Json = {"content": "", "tool_calls": []}
    ends = []
    for event in events:
        for choice in event["choices"]:
            if choice["index"] != index:
                continue
            delta = choice["delta"]
            message["content"] += delta.get("content") or ""
            if "reasoning_content" in delta:
                message.setdefault("reasoning_content", "")
                message["reasoning_content"] += delta["reasoning_content"]
            for call in delta.get("tool_calls", ()):
                if call["index"] == len(message["tool_calls"]):
                    message["tool_calls"].append(
                        {"id": call["id"], "type": call["type"], "function": call["function"]}
                    )
                    assert call["function"]["arguments"] == ""
                else:
                    assert set(call) == {"index", "function"}
                    assert set(call["function"]) == {"arguments"}
                    function = message["tool_calls"][call["index"]]["function"]
                    function["arguments"] += call["function"]["arguments"]
            if choice["finish_reason"] is not None:
                assert delta == {}
                ends.append(choice["finish_reason"])
    return message, ends


async def both(model: Served, **fields: Any) -> tuple[Json, str]:
    """The message and its end; a stream and a whole answer must tell the same."""
    fields = {"tools": TOOLS, **fields}
    [choice] = (await chat(model, **fields)).json()["choices"]
    streamed, ends = put_together(events_of(await chat(model, stream=True, **fields)))
    whole = choice["message"]
    assert ends == [choice["finish_reason"]]
    for message in (whole, streamed):
        for call in message.get("tool_calls") or ():
            assert re.fullmatch("call_[0-9a-f]{24}", call.pop("id"))
            assert call.pop("type") == "function"
    assert streamed["content"] == (whole["content"] or "")
    assert streamed["tool_calls"] == whole.get("tool_calls", [])
    assert streamed.get("reasoning_content") == whole.get("reasoning_content")
    return whole, choice["finish_reason"]


async def test_an_answer_that_only_calls_has_no_content() -> None:
    """B33: a call that is complete ends with tool_calls."""
    message, finish = await both(saying(tagged("f", '{"a": 1}')))

    assert message["content"] is None
    assert message["tool_calls"] == [{"function": {"name": "f", "arguments": '{"a": 1}'}}]
    assert finish == "tool_calls"


async def test_words_in_front_of_a_call_are_content() -> None:
    message, finish = await both(saying("Let me", " see.\n\n<tool", '_call>{"name": "f"}', "\n\n"))

    assert message["content"] == "Let me see."
    assert message["tool_calls"] == [{"function": {"name": "f", "arguments": "{}"}}]
    assert finish == "tool_calls"


@pytest.mark.parametrize(
    ("texts", "fields", "finish"),
    [
        ((tagged("f", "{}"),), {}, "tool_calls"),
        (("Hello",), {}, "stop"),
        (("Hello", " world"), {"max_tokens": 1}, "length"),
        (('<tool_call>{"name": "f", "arguments": {"a": ', "1}}"), {"max_tokens": 1}, "length"),
        ((tagged("f", "{}"), " more"), {"max_tokens": 1}, "length"),
        ((tagged("unknown", "{}"),), {}, "stop"),
        ((tagged("f", "{}"),), {"tools": None}, "stop"),
        ((tagged("f", "{}"),), {"tool_choice": "none"}, "stop"),
    ],
)
async def test_the_end_says_whether_tools_are_called(
    texts: Sequence[str], fields: Json, finish: str
) -> None:
    """B33: tool_calls, stop, length; streamed and whole alike, and told once."""
    assert (await both(saying(*texts), **fields))[1] == finish


@pytest.mark.parametrize("num_calls", [2, 5])
@pytest.mark.parametrize("per_event", [1, 100])
async def test_calls_that_come_together_are_all_told(num_calls: int, per_event: int) -> None:
    """B55: several calls in one event of the engine, the last of them at the end."""
    calls = [tagged("fg"[i % 2], json.dumps({"i": i})) for i in range(num_calls)]
    model = saying("\n".join(calls), per_event=per_event)

    message, finish = await both(model)

    assert message["tool_calls"] == [
        {"function": {"name": "fg"[i % 2], "arguments": json.dumps({"i": i})}}
        for i in range(num_calls)
    ]
    assert finish == "tool_calls"


async def test_without_parallel_calls_there_is_one_at_most() -> None:
    """B55: with parallel_tool_calls false."""
    model = saying(tagged("f", "{}") + "\n" + tagged("g", "{}"))

    message, finish = await both(model, parallel_tool_calls=False)

    assert [call["function"]["name"] for call in message["tool_calls"]] == ["f"]
    assert finish == "tool_calls"


async def test_ids_of_calls_differ_in_all_choices() -> None:
    model = saying(tagged("f", "{}") + tagged("g", "{}"))

    body = (await chat(model, tools=TOOLS, n=3)).json()
    events = events_of(await chat(model, tools=TOOLS, n=3, stream=True))

    whole = [call["id"] for c in body["choices"] for call in c["message"]["tool_calls"]]
    streamed = [put_together(events, index)[0]["tool_calls"] for index in range(3)]
    ids = {*whole, *(call["id"] for calls in streamed for call in calls)}
    assert len(ids) == 12


async def test_arguments_are_streamed_as_they_come() -> None:
    """B54, B85: id, type and name come with the first delta only, arguments join to the text."""
    texts = ("<tool_call>\n", '{"name": "f", "arg', 'uments": {"q": "x', 'y", "n"', ": 10}", "}\n")

    events = events_of(await chat(saying(*texts), tools=TOOLS, stream=True))

    deltas = [event["choices"][0]["delta"] for event in events]
    assert deltas[0] == {"role": "assistant", "content": ""}
    first, *others = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert first.pop("id").startswith("call_")
    assert first == {
        "index": 0,
        "type": "function",
        "function": {"name": "f", "arguments": ""},
    }
    assert others == [
        {"index": 0, "function": {"arguments": piece}} for piece in ('{"q": "x', 'y", "n"', ": 10}")
    ]
    assert deltas[-1] == {}


async def test_thoughts_are_told_apart_with_tools_and_without() -> None:
    texts = ("<think>", "\nWell", ".\n</think>", "\n\n", "Hello")
    for tools in (TOOLS, None):
        message, finish = await both(saying(*texts), tools=tools)

        assert message["reasoning_content"] == "Well."
        assert (message["content"], finish) == ("Hello", "stop")


async def test_a_prompt_that_opens_the_thoughts_is_understood() -> None:
    model = saying("Well.</think>", "Hello", template=QWEN + "<think>", last=ord(">"))

    message, _ = await both(model)

    assert (message["reasoning_content"], message["content"]) == ("Well.", "Hello")


@pytest.mark.parametrize("stream", [False, True])
async def test_logprobs_have_every_token_once(stream: bool) -> None:
    texts = ("Hi ", "<tool_call>\n", '{"name": "f", "arguments": {}}', "\n</tool_call>")

    response = await chat(saying(*texts), tools=TOOLS, logprobs=True, stream=stream)

    choices = [event["choices"][0] for event in events_of(response)] if stream else None
    choices = choices or response.json()["choices"]
    tokens = [t["token"] for c in choices if c["logprobs"] for t in c["logprobs"]["content"]]
    assert tokens == [*texts, "<|eot|>"]
