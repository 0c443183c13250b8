"""The events of a stream. Numbers are given when they are written, in the order of the stream."""

from typing import Any

import msgspec
from msgspec import Raw, Struct

from kokuban.server.openai_responses import LogprobItem, event_of
from kokuban.server.responses.bodies import Item, OutputText, ReasoningText


class Event(Struct, kw_only=True, tag_field="type"):
    """What all of them have."""

    sequence_number: int = 0


class _OfResponse(Event, kw_only=True):
    response: Raw


class Created(_OfResponse, tag="response.created"): ...


class Queued(_OfResponse, tag="response.queued"): ...


class InProgress(_OfResponse, tag="response.in_progress"): ...


class Completed(_OfResponse, tag="response.completed"): ...


class Incomplete(_OfResponse, tag="response.incomplete"): ...


class Failed(_OfResponse, tag="response.failed"): ...


class _OfItem(Event, kw_only=True):
    output_index: int
    item: Item


class ItemAdded(_OfItem, tag="response.output_item.added"): ...


class ItemDone(_OfItem, tag="response.output_item.done"): ...


class _InItem(Event, kw_only=True):
    item_id: str
    output_index: int


class _InContent(_InItem, kw_only=True):
    content_index: int = 0
    """Always 0: an item has one part."""


class PartAdded(_InContent, kw_only=True, tag="response.content_part.added"):
    part: OutputText | ReasoningText


class PartDone(_InContent, kw_only=True, tag="response.content_part.done"):
    part: OutputText | ReasoningText


class TextDelta(_InContent, kw_only=True, tag="response.output_text.delta"):
    delta: str
    logprobs: list[LogprobItem]


class TextDone(_InContent, kw_only=True, tag="response.output_text.done"):
    text: str
    logprobs: list[LogprobItem]


class ReasoningDelta(_InContent, kw_only=True, tag="response.reasoning_text.delta"):
    delta: str


class ReasoningDone(_InContent, kw_only=True, tag="response.reasoning_text.done"):
    text: str


class ArgumentsDelta(_InItem, kw_only=True, tag="response.function_call_arguments.delta"):
    delta: str


class ArgumentsDone(_InItem, kw_only=True, tag="response.function_call_arguments.done"):
    name: str
    arguments: str


class InputDelta(_InItem, kw_only=True, tag="response.custom_tool_call_input.delta"):
    delta: str


class InputDone(_InItem, kw_only=True, tag="response.custom_tool_call_input.done"):
    input: str


class Error(Event, kw_only=True, tag="error"):
    code: str
    message: str
    param: str | None = None


def write(event: Event) -> bytes:
    """One server-sent event, with its name: clients of this API go by the name."""
    name: Any = event.__struct_config__.tag
    return b"event: %b\n%b" % (name.encode(), event_of(msgspec.json.encode(event)))
