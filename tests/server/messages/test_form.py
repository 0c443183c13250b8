"""Words, thoughts and tool calls become blocks, whole and streamed alike."""

import json
from typing import Any

import pytest
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter
from tests.server.asgi import Json, make_app
from tests.server.fakes import served
from tests.server.messages.test_messages import events_of

from kokuban.core.request import FinishReason
from kokuban.core.sampling_params import SamplingParams
from kokuban.engine.generation import TextDelta
from kokuban.observe.clock import SystemClock
from kokuban.server.messages.form import MessagesForm
from kokuban.server.record import Record
from kokuban.server.serving import Serving
from kokuban.text.parts import CallPart, Part, ReasoningPart, TextPart

THOUGHT = [ReasoningPart("let "), ReasoningPart("me")]
WORDS = [TextPart("I "), TextPart("look")]
FIRST = [CallPart(0, "f", ""), CallPart(0, None, '{"a": '), CallPart(0, None, "1}")]
SECOND = [CallPart(1, "g", '{"b":\n 2}')]


def form() -> MessagesForm:
    serving: Serving = make_app(served()).state.serving
    record = Record(
        api="messages",
        request_id="r",
        client_id="-",
        clock=SystemClock(),
        metrics=serving.metrics,
        n=1,
        max_tokens=None,
        started_s=0.0,
    )
    return MessagesForm(serving, record, SamplingParams())


def deltas(parts: list[Part], **end: Any) -> list[TextDelta]:
    """One for each part, and one for the end."""
    said = [TextDelta(choice=0, text="", parts=(part,)) for part in parts]
    return [*said, TextDelta(choice=0, text="", **{"finish": FinishReason.STOP, **end})]


def whole(parts: list[Part], **how: Any) -> Json:
    shape = form()
    for delta in deltas(parts, **how):
        shape.add(delta)
    answer: Json = json.loads(shape.body())
    return answer


def streamed(parts: list[Part], *, at_once: bool = False, **end: Any) -> list[Json]:
    shape = form()
    data = shape.opening()
    if at_once:
        data += shape.events(TextDelta(choice=0, text="", parts=tuple(parts)))
        parts = []
    for delta in deltas(parts, **end):
        data += shape.events(delta)
    return events_of(data + shape.closing())


def put_together(events: list[Json]) -> list[Json]:
    """The blocks as a client builds them; checks that one is open at a time, numbered in order."""
    blocks: list[Json] = []
    is_open = False
    for event in events:
        match event["type"]:
            case "content_block_start":
                assert not is_open
                assert event["index"] == len(blocks)
                blocks.append(event["content_block"] | {"json": ""})
                is_open = True
            case "content_block_delta":
                assert (is_open, event["index"]) == (True, len(blocks) - 1)
                piece = event["delta"]
                for name in ("text", "thinking", "partial_json", "signature"):
                    target = "json" if name == "partial_json" else name
                    blocks[-1][target] = blocks[-1].get(target, "") + piece.get(name, "")
            case "content_block_stop":
                assert (is_open, event["index"]) == (True, len(blocks) - 1)
                is_open = False
    assert not is_open
    for block in blocks:
        if text := block.pop("json"):
            block["input"] = json.loads(text)
    names = {"text": {"type", "text"}, "thinking": {"type", "thinking", "signature"},
             "tool_use": {"type", "id", "name", "input"}}  # fmt: skip
    return [{n: block[n] for n in names[block["type"]]} for block in blocks]


@pytest.mark.parametrize(
    "parts",
    [
        [],
        WORDS,
        [*THOUGHT, *WORDS],
        [*THOUGHT, *WORDS, *FIRST, *SECOND],
        [*FIRST, *WORDS, *SECOND],
        [*FIRST, CallPart(1, "f", ""), *THOUGHT],
    ],
)
def test_a_stream_puts_together_what_the_whole_answer_is(parts: list[Part]) -> None:
    expected = whole(parts)

    for events in (streamed(parts), streamed(parts, at_once=True)):
        assert put_together(events) == expected["content"]
        assert events[-2]["delta"]["stop_reason"] == expected["stop_reason"]


def test_answers_and_events_are_what_the_official_client_declares() -> None:
    """Its types are strict here, unlike in the client itself."""
    parts = [*THOUGHT, *WORDS, *FIRST, *SECOND]
    events = TypeAdapter(RawMessageStreamEvent)

    Message.model_validate(whole(parts), strict=True)
    for event in streamed(parts):
        if event["type"] != "ping":  # Of which the client's types know nothing.
            found = events.validate_python(event, strict=True)
            assert found.type == event["type"]


def test_blocks_of_every_kind() -> None:
    answer = whole([*THOUGHT, *WORDS, *FIRST, *SECOND])

    assert answer["content"] == [
        {"type": "thinking", "thinking": "let me", "signature": "kokuban"},
        {"type": "text", "text": "I look"},
        {"type": "tool_use", "id": "toolu_r_0", "name": "f", "input": {"a": 1}},
        {"type": "tool_use", "id": "toolu_r_1", "name": "g", "input": {"b": 2}},
    ]
    assert answer["stop_reason"] == "tool_use"


def test_a_call_that_was_cut_off_has_no_input_and_the_reason_says_why() -> None:
    answer = whole(FIRST[:2], finish=FinishReason.LENGTH)

    assert answer["content"][0]["input"] == {}
    assert answer["stop_reason"] == "model_context_window_exceeded"


@pytest.mark.parametrize(
    ("parts", "end", "expected"),
    [
        (FIRST, {"stop_reason": "x"}, ("tool_use", None)),
        (FIRST[:2], {"stop_reason": "x"}, ("stop_sequence", "x")),
        ([*FIRST, CallPart(1, "g", "{")], {"stop_reason": "x"}, ("stop_sequence", "x")),
        (WORDS, {"stop_reason": "x"}, ("stop_sequence", "x")),
        (WORDS, {"stop_reason": 7}, ("end_turn", None)),
        (FIRST, {"finish": FinishReason.LENGTH}, ("model_context_window_exceeded", None)),
    ],
)
def test_a_whole_call_counts_more_than_the_stop_sequence_behind_it(
    parts: list[Part], end: Json, expected: tuple[str, str | None]
) -> None:
    answer, event = whole(parts, **end), streamed(parts, **end)[-2]["delta"]

    assert (answer["stop_reason"], answer["stop_sequence"]) == expected
    assert (event["stop_reason"], event["stop_sequence"]) == expected


DEEP = '{"a": ' + "[" * 20_000 + "]" * 20_000 + "}"


@pytest.mark.parametrize("arguments", ["", "[1]", "1", "{", '{"a": NaN}', "nothing", DEEP])
def test_arguments_that_are_no_object_are_none(arguments: str) -> None:
    assert whole([CallPart(0, "f", arguments)])["content"][0]["input"] == {}


def test_arguments_keep_their_numbers() -> None:
    [block] = whole([CallPart(0, "f", '{"a": 123456789012345678901234567890}')])["content"]

    assert block["input"] == {"a": 123456789012345678901234567890}
