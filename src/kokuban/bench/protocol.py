"""OpenAI's chat and completions API as a client of streams sees it: bodies out, events in."""

import json
from collections.abc import Mapping
from typing import Any, Literal, get_args

import msgspec
from msgspec import Struct

from kokuban.bench.jobs import Job
from kokuban.core.errors import ConfigError

Endpoint = Literal["chat", "completions"]

PATHS: Mapping[Endpoint, str] = {"chat": "/chat/completions", "completions": "/completions"}

DONE = b"[DONE]"


class PromptDetails(Struct):
    """Of `usage`."""

    cached_tokens: int | None = None


class StreamUsage(Struct):
    """Tokens of one answer, as the server counts them."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: PromptDetails | None = None


class Delta(Struct):
    """What a chat event adds."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[Any] | None = None


class StreamChoice(Struct):
    """One of an event's choices, in either API."""

    delta: Delta | None = None
    text: str | None = None
    finish_reason: str | None = None

    @property
    def says_something(self) -> bool:
        """Whether a reader has something new: text, thoughts or a piece of a tool call."""
        delta = self.delta
        if delta is None:
            return bool(self.text)
        return bool(delta.content or delta.reasoning_content or delta.reasoning or delta.tool_calls)


class StreamEvent(Struct):
    """One event of a stream. What a server says beyond this is not looked at."""

    choices: list[StreamChoice] = []
    usage: StreamUsage | None = None
    error: Any = None


DECODER = msgspec.json.Decoder(StreamEvent)


def check_endpoint(name: str) -> Endpoint:
    """Raises `ConfigError` for an endpoint that does not exist."""
    for known in get_args(Endpoint):
        if name == known:
            found: Endpoint = known
            return found
    raise ConfigError(f"--endpoint {name} is none of {', '.join(get_args(Endpoint))}")


def check_job(endpoint: Endpoint, job: Job) -> None:
    """Raises `ConfigError` for a prompt that this endpoint does not take."""
    first = job.prompt[0]
    if isinstance(first, dict) and endpoint != "chat":
        raise ConfigError("the prompts are messages, which --endpoint completions does not take")
    if isinstance(first, int) and endpoint != "completions":
        raise ConfigError("the prompts are token ids, which only --endpoint completions takes")


def check_encodable(option: str, value: object) -> None:
    """Raises `ConfigError` for what no body can hold: half a character, or too large a number."""
    try:
        msgspec.json.encode(value)
    except (UnicodeEncodeError, OverflowError, RecursionError) as error:
        raise ConfigError(
            f"{option} {value!a} cannot be sent ({error}); give valid UTF-8 and numbers of at most "
            f"64 bits"
        ) from error


def parse_extra(text: str) -> dict[str, Any]:
    """Fields for each body, from `--body`.

    Raises:
        ConfigError: it is no JSON object, or cannot be sent.
    """
    try:
        extra = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"--body {text} is no JSON: {error}") from error
    if not isinstance(extra, dict):
        raise ConfigError(f"--body {text} is no JSON object")
    check_encodable("--body", extra)
    return extra


def _refuse(constant: str) -> None:
    """NaN and Infinity, which Python reads, would be sent as null."""
    raise ValueError(f"{constant} is no number")


def encode_body(endpoint: Endpoint, model: str, job: Job, extra: Mapping[str, Any]) -> bytes:
    """A request for a stream that ends with its usage.

    Args:
        extra: fields to add; they win over ours.
    """
    body: dict[str, Any] = {
        "model": model,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": job.max_tokens,
    }
    if endpoint == "completions":
        body["prompt"] = job.prompt
    elif isinstance(job.prompt, str):
        body["messages"] = [{"role": "user", "content": job.prompt}]
    else:
        body["messages"] = job.prompt
    return msgspec.json.encode(body | dict(extra))


def message_of(error: object) -> str:
    """What an error says, in one line that is not too long."""
    if isinstance(error, dict):
        inner = error.get("error", error)
        error = inner.get("message", inner) if isinstance(inner, dict) else inner
    return " ".join(str(error).split())[:200]


def message_of_body(body: bytes) -> str:
    """The same from the body of an answer that is no stream."""
    try:
        return message_of(msgspec.json.decode(body))
    except msgspec.DecodeError:
        return message_of(body.decode("utf-8", "replace"))
