"""The bodies and events that we send, as msgspec structs: the field order is that on the wire."""

from typing import Literal

from msgspec import Raw, Struct

from kokuban.server.openai_responses import Receipt, encode, event_of

SIGNATURE = "kokuban"
"""Of every thinking block: clients keep only signed ones. It is not looked at when it returns."""

StopReason = Literal[
    "end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"
]


class Tagged(Struct, frozen=True, kw_only=True, tag_field="type"):
    """What has a field `type` in front."""


class TextBlock(Tagged, tag="text", frozen=True, kw_only=True):
    text: str


class ThinkingBlock(Tagged, tag="thinking", frozen=True, kw_only=True):
    thinking: str
    signature: str


class ToolUseBlock(Tagged, tag="tool_use", frozen=True, kw_only=True):
    id: str
    name: str
    input: Raw


OutputBlock = TextBlock | ThinkingBlock | ToolUseBlock


class MessageUsage(Struct, frozen=True, kw_only=True):
    """The three counts of input tokens add up to the prompt."""

    input_tokens: int
    cache_creation_input_tokens: int
    """Those whose KV can be found from now on and could not before; told of requests with marks
    only."""

    cache_read_input_tokens: int
    output_tokens: int
    service_tier: Literal["standard"] = "standard"
    kokuban: Receipt


class MessageAnswer(Tagged, tag="message", frozen=True, kw_only=True):
    id: str
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[OutputBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None = None
    usage: MessageUsage


class TokenCount(Struct, frozen=True):
    input_tokens: int


class TextPiece(Tagged, tag="text_delta", frozen=True, kw_only=True):
    text: str


class ThinkingPiece(Tagged, tag="thinking_delta", frozen=True, kw_only=True):
    thinking: str


class SignaturePiece(Tagged, tag="signature_delta", frozen=True, kw_only=True):
    signature: str


class InputPiece(Tagged, tag="input_json_delta", frozen=True, kw_only=True):
    partial_json: str


Piece = TextPiece | ThinkingPiece | SignaturePiece | InputPiece


class Stop(Struct, frozen=True, kw_only=True):
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None


class MessageStart(Tagged, tag="message_start", frozen=True, kw_only=True):
    message: MessageAnswer


class BlockStart(Tagged, tag="content_block_start", frozen=True, kw_only=True):
    index: int
    content_block: OutputBlock


class BlockDelta(Tagged, tag="content_block_delta", frozen=True, kw_only=True):
    index: int
    delta: Piece


class BlockStop(Tagged, tag="content_block_stop", frozen=True, kw_only=True):
    index: int


class MessageDelta(Tagged, tag="message_delta", frozen=True, kw_only=True):
    delta: Stop
    usage: MessageUsage


class MessageStop(Tagged, tag="message_stop", frozen=True, kw_only=True):
    pass


def named(name: str, body: Struct) -> bytes:
    """One server-sent event with its name, as Anthropic's clients need it."""
    return f"event: {name}\n".encode() + event_of(encode(body))


def event(body: Tagged) -> bytes:
    """An event that is called what its `type` says."""
    return named(str(type(body).__struct_config__.tag), body)


class Ping(Tagged, tag="ping", frozen=True, kw_only=True):
    pass


PING = event(Ping())
"""After the beginning, and where nothing else comes for a while."""
