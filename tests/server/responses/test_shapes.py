"""What is sent has the shape that OpenAI's own document describes."""

from typing import Any

import msgspec
import pytest
from tests.server.asgi import client
from tests.server.fakes import FakeEngine, served
from tests.server.live import CHAIN, PIECES
from tests.server.responses.schemas import assert_valid, assert_valid_events
from tests.server.responses.speaking import Json, ask, parse_named_events, stream

from kokuban.core.request import FinishReason
from kokuban.core.step import SampledToken
from kokuban.engine.generation import TextDelta
from kokuban.server.responses.assembly import Assembly
from kokuban.server.responses.events import Event, write
from kokuban.server.responses.tools import Offered
from kokuban.text.parts import CallPart, Part, ReasoningPart, TextPart

FULL: Json = {
    "instructions": "be short",
    "metadata": {"a": "b"},
    "include": ["message.output_text.logprobs", "reasoning.encrypted_content"],
    "top_logprobs": 2,
    "max_output_tokens": 64,
    "max_tool_calls": 3,
    "temperature": 0.5,
    "top_p": 0.9,
    "user": "u",
    "safety_identifier": "s",
    "prompt_cache_key": "k",
    "service_tier": "auto",
    "text": {"format": {"type": "text"}, "verbosity": "low"},
    "reasoning": {"effort": "low", "summary": "auto"},
    "tools": [
        {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": False},
        {"type": "custom", "name": "c"},
    ],
    "stop": "!",
}


@pytest.mark.parametrize("fields", [{}, FULL, {"max_output_tokens": 1}])
@pytest.mark.parametrize("background", [False, True])
async def test_responses_and_their_events_are_valid(fields: Json, background: bool) -> None:
    async with client(served(pieces=PIECES, engine=FakeEngine(CHAIN))) as http:
        whole = await ask(http, **fields)
        events = await stream(http, background=background, **fields)

    assert_valid("Response", whole)
    assert_valid_events(events)


async def test_a_stream_that_fails_is_valid_too() -> None:
    async with client(served(pieces=PIECES, engine=FakeEngine({10: 262, 262: -1}))) as http:
        events = await stream(http)

    assert [event["type"] for event in events][-1] == "response.failed"
    assert_valid_events(events)


async def test_input_items_are_valid() -> None:
    items: list[Json] = [
        {"role": "user", "content": "p"},
        {"role": "developer", "content": [{"type": "input_text", "text": "p"}]},
        {"role": "assistant", "content": "p"},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "p"}]},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "p"},
        {"role": "user", "content": "p"},
    ]
    async with client(served(pieces=PIECES, engine=FakeEngine(CHAIN))) as http:
        answer = await ask(http, input=items)
        listed = (await http.get(f"/v1/responses/{answer['id']}/input_items")).json()
        deleted = (await http.delete(f"/v1/responses/{answer['id']}")).json()

    assert len(listed["data"]) == 7
    assert_valid("ResponseItemList", listed)
    assert deleted == {"id": answer["id"], "object": "response", "deleted": True}


OFFERED = {
    "f": Offered("f"),
    "n__g": Offered("g", "n"),
    "c": Offered("c", is_custom=True),
}


def assemble(*by_delta: tuple[Part, ...], finish: FinishReason = FinishReason.STOP) -> list[Json]:
    """The events of an answer, with its ids shortened to what tells them apart."""
    assembly = Assembly("", OFFERED, to_logprob=None, end_token_ids=(), seal=True)
    told: list[Event] = []
    for number, parts in enumerate(by_delta, 1):
        last = finish if number == len(by_delta) else None
        token = SampledToken(number, -0.5, ())
        told += assembly.feed(
            TextDelta(choice=0, text="", tokens=(token,), finish=last, parts=parts)
        )
    for number, event in enumerate(told):
        event.sequence_number = number
    return parse_named_events(b"".join(map(write, told)))


ANSWERS: list[tuple[tuple[Part, ...], ...]] = [
    ((ReasoningPart("hm"),), (TextPart("\n\n"),), (TextPart("yes"),), ()),
    ((TextPart("so"),), (CallPart(0, "f", ""),), (CallPart(0, None, '{"a":1}'),)),
    ((CallPart(0, "f", "{"), CallPart(0, None, "}"), CallPart(1, "n__g", "{}")), ()),
    ((CallPart(0, "c", '{"input": "a\\nb"}'),), ()),
    ((ReasoningPart("hm"), CallPart(0, "unknown", "{}")), ()),
    ((),),
]


@pytest.mark.parametrize("by_delta", ANSWERS)
@pytest.mark.parametrize("finish", [FinishReason.STOP, FinishReason.LENGTH])
def test_events_of_every_kind_of_item_are_valid(by_delta: Any, finish: FinishReason) -> None:
    assert_valid_events(assemble(*by_delta, finish=finish))


def brief(event: Json) -> Any:
    """The name of an event and what it says."""
    kind = event["type"].removeprefix("response.")
    item = event.get("item", {})
    said = [
        event.get("delta", event.get("text", event.get("arguments", event.get("input")))),
        item.get("arguments", item.get("input")),
        item.get("status"),
    ]
    return (kind, event["output_index"], *[each for each in said if each is not None])


def test_thoughts_words_and_calls_are_items_in_the_order_of_their_coming() -> None:
    events = assemble(
        (ReasoningPart("h"),),
        (ReasoningPart("m"), TextPart("\n")),
        (TextPart("so"),),
        (CallPart(0, "f", ""), CallPart(0, None, '{"a"')),
        (CallPart(0, None, ":1}"), CallPart(1, "c", '{"input": "x"}')),
        (),
    )

    assert [brief(event) for event in events] == [
        ("output_item.added", 0, "in_progress"),
        ("content_part.added", 0),
        ("reasoning_text.delta", 0, "h"),
        ("reasoning_text.delta", 0, "m"),
        ("reasoning_text.done", 0, "hm"),
        ("content_part.done", 0),
        ("output_item.done", 0, "completed"),
        ("output_item.added", 1, "in_progress"),
        ("content_part.added", 1),
        ("output_text.delta", 1, "\nso"),
        ("output_text.done", 1, "\nso"),
        ("content_part.done", 1),
        ("output_item.done", 1, "completed"),
        ("output_item.added", 2, "", "in_progress"),
        ("function_call_arguments.delta", 2, '{"a"'),
        ("function_call_arguments.delta", 2, ":1}"),
        ("function_call_arguments.done", 2, '{"a":1}'),
        ("output_item.done", 2, '{"a":1}', "completed"),
        ("output_item.added", 3, "", "in_progress"),
        ("custom_tool_call_input.delta", 3, "x"),
        ("custom_tool_call_input.done", 3, "x"),
        ("output_item.done", 3, "x", "completed"),
    ]


def test_blanks_alone_make_no_message_beside_others() -> None:
    events = assemble((TextPart("\n"),), (CallPart(0, "f", "{}"),), (TextPart(" "),), ())

    assert {event["item"]["type"] for event in events if "item" in event} == {"function_call"}


def test_blanks_that_are_all_there_is_are_the_message() -> None:
    events = assemble((TextPart("\n"),), ())

    assert events[-1]["item"]["content"][0]["text"] == "\n"


def test_an_answer_of_nothing_is_an_empty_message() -> None:
    events = assemble(())

    assert events[-1]["item"]["type"] == "message"
    assert events[-1]["item"]["content"][0]["text"] == ""


def test_what_the_limit_cuts_off_is_incomplete() -> None:
    events = assemble((TextPart("so"),), (CallPart(0, "f", '{"a'),), finish=FinishReason.LENGTH)

    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert [item["status"] for item in done] == ["completed", "incomplete"]


def test_a_call_in_a_namespace_has_its_own_name_back() -> None:
    events = assemble((CallPart(0, "n__g", "{}"),), ())

    assert (events[-1]["item"]["namespace"], events[-1]["item"]["name"]) == ("n", "g")
    assert events[-2]["name"] == "g"


@pytest.mark.parametrize("arguments", ["", "{", "[]", '{"input": 1}', '{"other": "x"}', '"x"'])
def test_what_is_no_input_of_a_custom_tool_is_given_as_the_model_wrote_it(arguments: str) -> None:
    events = assemble((CallPart(0, "c", arguments),), ())

    assert events[-1]["item"]["input"] == arguments


def test_tokens_of_thoughts_are_counted_with_those_that_open_and_close_them() -> None:
    assembly = Assembly("", {}, to_logprob=None, end_token_ids=(), seal=False)

    def feed(*parts: Part, finish: FinishReason | None = None) -> None:
        token = SampledToken(1, -0.5, ())
        delta = TextDelta(choice=0, text="", tokens=(token,), parts=parts, finish=finish)
        assembly.feed(delta)

    feed()  # <think>
    feed(ReasoningPart("a"))
    feed(ReasoningPart("b"))
    feed(TextPart("c"))
    feed(TextPart("d"), finish=FinishReason.STOP)

    assert assembly.reasoning_tokens == 3


def test_thoughts_are_sealed_only_once_they_are_whole() -> None:
    events = assemble((ReasoningPart("hm"),), (TextPart("yes"),))

    reasoning = [
        event["item"] for event in events if event.get("item", {}).get("type") == "reasoning"
    ]
    assert "encrypted_content" not in reasoning[0]
    assert reasoning[1]["encrypted_content"] == "kokuban1.aG0="
    assert (
        msgspec.json.encode(reasoning[1]["content"]) == b'[{"type":"reasoning_text","text":"hm"}]'
    )
