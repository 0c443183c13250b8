"""The bodies that we send, as msgspec structs: the field order here is the order on the wire."""

from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

Finish = Literal["stop", "length"]
ChatFinish = Literal["stop", "length", "tool_calls"]

_ENCODER = msgspec.json.Encoder()

# Raw in JSON, but line ends for clients that split a stream with Python's `str.splitlines`.
_LINE_ENDS = (
    (b"\xe2\x80\xa8", b"\\u2028"),
    (b"\xe2\x80\xa9", b"\\u2029"),
    (b"\xc2\x85", b"\\u0085"),
)


def encode(body: Struct) -> bytes:
    """JSON in UTF-8, on one line."""
    return _ENCODER.encode(body)


def event(body: Struct) -> bytes:
    """One server-sent event: one line of JSON and a blank one."""
    return event_of(_ENCODER.encode(body))


def event_of(data: bytes) -> bytes:
    """The same around JSON that is ready."""
    for raw, escaped in _LINE_ENDS:
        if raw in data:
            data = data.replace(raw, escaped)
    return b"data: " + data + b"\n\n"


DONE = b"data: [DONE]\n\n"


class PromptDetails(Struct, frozen=True):
    cached_tokens: int = 0
    """Prompt tokens whose KV was found, in whatever tier."""

    cache_write_tokens: int = 0
    """Prompt tokens whose KV can be found from now on and could not before."""


class Receipt(Struct, frozen=True, kw_only=True):
    """Beyond OpenAI: what the answer cost. See `receipt.merge` for several choices."""

    cached_pool_tokens: int
    cached_ram_tokens: int
    cached_disk_tokens: int
    """The three add up to `cached_tokens`."""

    resumed_from: str | None
    """After a pause, where the session's KV came from: "pool", "ram", "disk" or "recompute".
    Otherwise the lowest tier that KV was found in; null: nothing was found."""

    queue_ms: float
    prefill_ms: float
    """From admission to the first token."""

    decode_ms: float
    preemptions: int
    recomputed_tokens: int
    """Tokens that were computed again after a preemption."""

    accepted_prediction_tokens: int
    """Completion tokens that were guessed before they were sampled (`--speculate`)."""

    rejected_prediction_tokens: int
    """Guesses that were wrong. Unlike OpenAI's of this name they are not completion tokens."""


class CompletionDetails(Struct, frozen=True):
    reasoning_tokens: int = 0
    """Completion tokens of thoughts, their marks included."""


class UsageBody(Struct, frozen=True):
    """Prompt tokens count once, whatever n is; completion tokens are the sum over the choices."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails
    kokuban: Receipt


class TopLogprob(Struct, frozen=True):
    """`bytes` are the token's own, also where `token` cannot show half a character."""

    token: str
    logprob: float
    bytes: list[int]


class LogprobItem(Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Struct, frozen=True):
    content: list[LogprobItem]
    refusal: None = None


class CalledFunction(Struct, frozen=True):
    name: str
    arguments: str
    """JSON text, as the model wrote it."""


class ToolCallBody(Struct, frozen=True):
    id: str
    function: CalledFunction
    type: Literal["function"] = "function"


class ChatMessage(Struct, frozen=True):
    content: str | None
    """null where the model only calls tools."""

    role: str = "assistant"
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    """Beyond OpenAI, as vLLM and others have it: what the model thought."""

    tool_calls: list[ToolCallBody] | UnsetType = UNSET


class ChatChoice(Struct, frozen=True):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinish
    stop_reason: str | int | None
    """Beyond OpenAI: the stop string or token id of the request that ended the text."""

    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: UsageBody
    service_tier: str | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class FunctionDelta(Struct, frozen=True, omit_defaults=True, kw_only=True):
    name: str | None = None
    arguments: str


class ToolCallDelta(Struct, frozen=True, omit_defaults=True):
    """`id`, `type` and the name come once, with the first piece of a call."""

    index: int
    function: FunctionDelta
    id: str | None = None
    type: str | None = None


class Delta(Struct, frozen=True, omit_defaults=True):
    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallDelta] | None = None


class ChunkChoice(Struct, frozen=True):
    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: ChatFinish | None = None
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class ChatChunk(Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChunkChoice]
    usage: UsageBody | UnsetType | None = UNSET
    service_tier: str | UnsetType = UNSET


class CompletionLogprobs(Struct, frozen=True):
    """Four lists of one length. The first token of an echoed prompt has no logprob: null."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(Struct, frozen=True):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Finish | None
    stop_reason: str | int | None = None
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class Completion(Struct, frozen=True, kw_only=True):
    """Also the form of a stream's chunks."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: UsageBody | UnsetType | None = UNSET


class ModelCard(Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "kokuban"
    max_model_len: int
    root: str
    """The name that answers have, whichever of its names was asked for."""

    parent: None = None


class ModelList(Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: list[ModelCard]


class Piece(Struct, frozen=True):
    """A token as llama.cpp shows it."""

    id: int
    piece: str | list[int]
    """Its bytes where they are no text on their own."""


class Tokens(Struct, frozen=True):
    count: int
    max_model_len: int
    tokens: Sequence[int | Piece]
    token_strs: list[str] | None = None


class Text(Struct, frozen=True):
    prompt: str
    """vLLM's name of it."""

    content: str
    """llama.cpp's."""


class RenderedPrompt(Struct, frozen=True):
    """What a template makes of messages, for people to read."""

    prompt: str
