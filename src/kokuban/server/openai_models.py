"""The bodies that clients send, as pydantic models.

The models check types; ranges are checked once, by `core.SamplingParams`. Types are strict: true
is no number, "5" is no integer, NaN and infinities are no numbers. null means absent.
Fields that we do not know are accepted and ignored; fields that we know and cannot serve are
refused by name, never ignored (`REFUSED`).
"""

import json
import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError, field_validator

from kokuban.core.errors import RequestError
from kokuban.core.sampling_params import MAX_LOGPROBS
from kokuban.server.cache_models import CacheFields, Marked, Strict
from kokuban.server.errors import from_validation

MAX_BIASES = 1024
MAX_STOP_LENGTH = 1024
MAX_TOOLS = 256
MAX_SALT_LENGTH = 1024
MAX_BEST_OF = 20
"""OpenAI's limit."""

_TEMPLATE = "the chat template comes with the model and cannot be replaced by a request"
_TOOLS = "use tools instead"
REFUSED = {
    "chat_template": _TEMPLATE,
    "functions": _TOOLS,
    "function_call": _TOOLS,
    "audio": "this server answers in text only",
    "web_search_options": "this server has no search",
    "use_beam_search": "beam search is not served; use n or best_of, or LLM.beam_search offline",
    "truncate_prompt_tokens": "prompts are never cut; shorten it yourself",
    "prompt_logprobs": "use /v1/completions with echo and logprobs",
    "logits_processors": "use logit_bias",
}
"""Known fields that would change the answer and that we do not serve, with the way out."""

Body = TypeVar("Body", bound=BaseModel)

_HALF = re.compile(rb"\\u[dD][89a-fA-F]")


def parse(model: type[Body], raw: bytes) -> Body:
    """Read a body.

    Raises:
        RequestError: it is not JSON, not an object, has a field of the wrong type or a field that
            this server cannot serve.
    """
    try:
        body = model.model_validate_json(raw)
    except ValidationError as error:
        raise _half_pair(raw) or from_validation(error) from None
    for name, value in (body.model_extra or {}).items():
        if name in REFUSED and value not in (None, False, "", [], {}):
            raise RequestError(f"{name}: {REFUSED[name]}", param=name, code="unsupported_field")
    return body


def _half_pair(raw: bytes) -> RequestError | None:
    """What is wrong with a body that is JSON but for half of a surrogate pair, such as \\ud83d."""
    if not _HALF.search(raw):
        return None
    try:
        fields = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    for name, value in fields.items() if isinstance(fields, dict) else ():
        try:
            json.dumps([name, value], ensure_ascii=False).encode()
        except UnicodeEncodeError:
            param = name if name.isidentifier() and name.isascii() else None
            return RequestError(
                f"{param or 'the body'} holds half of a surrogate pair, which is no character; "
                f"send the whole pair or U+FFFD",
                param=param,
                code="invalid_value",
            )
    return None


class StreamOptions(Strict):
    """What a stream holds beside the text."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class SamplingFields(CacheFields):
    """What chat and completions have in common."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = Field(None, max_length=MAX_BIASES)
    seed: int | None = None
    stop: str | list[Annotated[str, Field(max_length=MAX_STOP_LENGTH)]] | None = None
    stop_token_ids: list[int] | None = Field(None, max_length=MAX_BIASES)
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    guided_json: dict[str, Any] | bool | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    json_schema: dict[str, Any] | bool | str | None = None
    grammar: str | None = None
    regex: str | None = None
    choice: list[str] | None = None
    priority: int | None = Field(None, ge=-(2**31), le=2**31 - 1)
    """Lower runs first."""

    user: str | None = None
    cache_salt: str | None = Field(None, min_length=1, max_length=MAX_SALT_LENGTH)
    """Cached KV is shared only with requests of the same key that have the same salt."""

    @field_validator("stop", mode="after")
    @classmethod
    def _short(cls, value: str | list[str] | None) -> str | list[str] | None:
        if isinstance(value, str) and len(value) > MAX_STOP_LENGTH:
            raise ValueError(
                f"a stop string has {len(value)} characters; the limit is {MAX_STOP_LENGTH}"
            )
        return value


class ContentPart(Marked):
    """A piece of a message. Which kinds can be read is decided by `text.messages`."""

    type: str
    text: str | None = None
    refusal: str | None = None


class FunctionCall(Strict):
    """The function that an assistant called earlier."""

    name: str
    arguments: str | dict[str, Any] = ""


class ToolCall(Marked):
    """An earlier call, as the client replays it."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: FunctionCall


class Message(Marked):
    """One turn of a conversation, checked further by `text.messages`. Unknown fields go to the
    template."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[str | ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None


class FunctionTool(Marked):
    """What the model is told about a function."""

    name: str = Field(min_length=1, max_length=256)
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(Marked):
    """A function that the model may ask for."""

    type: Literal["function"]
    function: FunctionTool


class TemplateFields(Strict):
    """How messages become a prompt; chat and tokenize have it in common."""

    messages: list[Message] = Field(min_length=1)
    tools: list[Tool] | None = Field(None, max_length=MAX_TOOLS)
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def plain_messages(self) -> list[dict[str, Any]]:
        """The messages as the client sent them, without marks."""
        return [message.model_dump(exclude_unset=True) for message in self.messages]

    def plain_tools(self) -> list[dict[str, Any]] | None:
        """The tools as the client sent them, without marks; None: there are none."""
        return [tool.model_dump(exclude_unset=True) for tool in self.tools or ()] or None


class ChatRequest(TemplateFields, SamplingFields):
    """The body of /v1/chat/completions."""

    max_completion_tokens: int | None = Field(None, ge=1, le=2**62)
    """The newer name of max_tokens. When both are given, the smaller one counts."""

    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    modalities: list[str] | None = None
    echo: bool | None = None

    @field_validator("modalities")
    @classmethod
    def _text_only(cls, value: list[str] | None) -> list[str] | None:
        if value is not None and value != ["text"]:
            raise ValueError("this server answers in text only")
        return value

    @field_validator("echo")
    @classmethod
    def _no_echo(cls, value: bool | None) -> bool | None:
        if value:
            raise ValueError("a chat cannot be echoed; use /v1/completions")
        return value

    @field_validator("tool_choice")
    @classmethod
    def _free_choice(cls, value: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
        if value not in (None, "auto", "none"):
            raise ValueError("only 'auto' and 'none' are supported yet: a call cannot be forced")
        return value

    @field_validator("top_logprobs")
    @classmethod
    def _needs_logprobs(cls, value: int | None, info: Any) -> int | None:
        if value is not None and not info.data.get("logprobs"):
            raise ValueError("needs logprobs to be true")
        return value


Prompt = str | list[str] | list[int] | list[list[int]]


class CompletionRequest(SamplingFields):
    """The body of /v1/completions."""

    prompt: Prompt
    """Text or token ids, one or a list. Text may hold special tokens: nobody else's words are in
    it, unlike in a chat."""

    echo: bool | None = None
    logprobs: int | None = None
    best_of: int | None = None
    """Choices to be generated; the n with the highest mean logprob of their tokens are returned."""

    suffix: str | None = None
    add_special_tokens: bool | None = None

    @field_validator("prompt", mode="wrap")
    @classmethod
    def _one_kind(cls, value: Any, _handler: Any) -> Any:
        return one_kind_of_prompt(value)

    @field_validator("best_of")
    @classmethod
    def _whole_answers(cls, value: int | None, info: Any) -> int | None:
        n = info.data.get("n") or 1
        if value is None or value == n:
            return value
        if value < n:
            raise ValueError(f"{value} is below n={n}: the n best of them are returned")
        if value > MAX_BEST_OF:
            raise ValueError(f"{value} is above the limit of {MAX_BEST_OF}")
        if info.data.get("stream"):
            raise ValueError("cannot be streamed when it is above n: the best are known at the end")
        return value

    @property
    def num_ranked(self) -> int | None:
        """Choices to be generated for each prompt, of which the n best are returned; None: n."""
        return None if self.best_of in (None, self.n or 1) else self.best_of

    @field_validator("suffix")
    @classmethod
    def _no_suffix(cls, value: str | None) -> str | None:
        if value:
            raise ValueError("inserting before a suffix is not supported")
        return value


def one_kind_of_prompt(value: Any) -> Any:
    """Raises `ValueError` unless it is one of the kinds of `Prompt`."""
    if isinstance(value, str) or _all_of(value, str) or _all_of(value, int):
        return value
    if isinstance(value, list) and value and all(_all_of(row, int) for row in value):
        return value
    raise ValueError(
        "must be a text, a list of texts, a list of token ids or a list of lists of token ids, "
        "and no list may be empty"
    )


def prompt_rows(given: Prompt) -> Sequence[str | list[int]]:
    """The prompts one by one, as they were sent."""
    if isinstance(given, str):
        return [given]
    if isinstance(given[0], int):
        return [[token_id for token_id in given if isinstance(token_id, int)]]
    return [row for row in given if not isinstance(row, int)]


def _all_of(value: Any, kind: type) -> bool:
    """Whether it is a list with at least one item, all of exactly this type (true is no int)."""
    return isinstance(value, list) and bool(value) and all(type(item) is kind for item in value)


class TokenizeText(Strict):
    """The body of /tokenize for a text."""

    prompt: str
    model: str | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class TokenizeChat(TemplateFields):
    """The body of /tokenize for messages."""

    model: str | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(Strict):
    """The body of /detokenize."""

    tokens: list[int]
    model: str | None = None
