"""Responses and their items as they are sent: the field order here is the order on the wire."""

import json
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, field

from kokuban.server.openai_responses import LogprobItem, Receipt

ItemStatus = Literal["in_progress", "completed", "incomplete"]
Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
FINAL: tuple[Status, ...] = ("completed", "incomplete", "failed", "cancelled")
"""A response with one of these does not change any more."""


class OutputText(Struct, frozen=True, kw_only=True, tag_field="type", tag="output_text"):
    """What the model says to the user."""

    text: str
    annotations: list[Any] = field(default_factory=list)
    """Always empty: nothing is cited."""

    logprobs: list[LogprobItem] = field(default_factory=list)
    """Of the text's tokens, if they were asked for by `include`."""


class ReasoningText(Struct, frozen=True, tag_field="type", tag="reasoning_text"):
    """What it thinks."""

    text: str


class MessageItem(Struct, frozen=True, kw_only=True, tag_field="type", tag="message"):
    id: str
    status: ItemStatus
    role: Literal["assistant"] = "assistant"
    content: list[OutputText]


class ReasoningItem(Struct, frozen=True, kw_only=True, tag_field="type", tag="reasoning"):
    id: str
    status: ItemStatus
    summary: list[Any] = field(default_factory=list)
    """Always empty: the thoughts are there themselves."""

    content: list[ReasoningText]
    encrypted_content: str | UnsetType = UNSET
    """What `content` says in a form that clients send back unseen; if `include` asks for it."""


class FunctionCallItem(Struct, frozen=True, kw_only=True, tag_field="type", tag="function_call"):
    id: str
    status: ItemStatus
    call_id: str
    name: str
    arguments: str
    namespace: str | UnsetType = UNSET


class CustomCallItem(Struct, frozen=True, kw_only=True, tag_field="type", tag="custom_tool_call"):
    """A call of a tool that takes a text instead of arguments."""

    id: str
    status: ItemStatus
    call_id: str
    name: str
    input: str
    namespace: str | UnsetType = UNSET


Item = MessageItem | ReasoningItem | FunctionCallItem | CustomCallItem


class InputDetails(Struct, frozen=True):
    cached_tokens: int
    cache_write_tokens: int


class OutputDetails(Struct, frozen=True):
    reasoning_tokens: int


class ResponseUsage(Struct, frozen=True, kw_only=True):
    """The end token counts; so do those that open and close thoughts and calls."""

    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int
    kokuban: Receipt


FailureCode = Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]


class ResponseFailure(Struct, frozen=True):
    """Why there is no whole answer."""

    code: FailureCode
    message: str


class IncompleteDetails(Struct, frozen=True):
    reason: Literal["max_output_tokens", "content_filter"]


class ReasoningEcho(Struct, frozen=True):
    effort: str | None = None
    summary: str | None = None


class ResponseBody(Struct, frozen=True, kw_only=True):
    """A response, as it is now. What the client chose is repeated with the defaults filled in."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None
    status: Status
    background: bool
    error: ResponseFailure | None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    model: str
    output: list[Item]
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: ReasoningEcho
    safety_identifier: str | None
    service_tier: str
    store: bool
    temperature: float
    text: Raw
    tool_choice: Raw
    tools: Raw
    """Those that the model was told about."""

    top_logprobs: int
    top_p: float
    presence_penalty: float
    frequency_penalty: float
    truncation: Literal["auto", "disabled"]
    usage: ResponseUsage | UnsetType = UNSET
    """Once it is known."""

    user: str | UnsetType = UNSET
    metadata: dict[str, str]


class ResponseDeleted(Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["response"] = "response"
    deleted: bool = True


class ItemList(Struct, frozen=True, kw_only=True):
    """A page of input items."""

    object: Literal["list"] = "list"
    data: list[Raw]
    first_id: str
    """Empty when the page is."""

    last_id: str
    has_more: bool


class InputTokens(Struct, frozen=True, kw_only=True):
    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


def encode_body(body: ResponseBody) -> Raw:
    """As JSON that can be put into an event, or be sent alone."""
    return Raw(msgspec.json.encode(body))


def encode_given(value: Any) -> bytes:
    """What a client sent, as JSON again. Its numbers may be larger than those of msgspec."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
