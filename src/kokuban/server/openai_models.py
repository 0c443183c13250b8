"""The bodies that clients send, as pydantic models.

The models check types; meanings and limits stand in the table (`parameters`), and ranges of
sampling are checked once, by `core.SamplingParams`. Types are strict: true is no number, "5" is no
integer and 1.0 is none either, NaN and infinities are no numbers. null means absent.
Fields that nobody knows are kept and told of (`parameters.unknown_fields`); fields that we know and
cannot serve are refused by name, never ignored.
"""

import json
import re
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import Field, ValidationError, field_validator

from kokuban.core.errors import RequestError
from kokuban.server.cache_models import CacheFields, Marked, Strict
from kokuban.server.errors import from_validation
from kokuban.server.parameter import Api
from kokuban.server.parameters import check_extras, of
from kokuban.server.parameters_form import ONE_FORM
from kokuban.server.parameters_served import MAX_STOP_LENGTH
from kokuban.server.schema_parts import (
    MESSAGE,
    NO_MESSAGES,
    SOME_TOOLS,
    TEXT_PART,
    ResponseFormat,
    SchemaOrText,
    StructuredOutputs,
    TextOnly,
    TokenId,
    ToolChoice,
    described,
    needs,
)

Body = TypeVar("Body", bound=Strict)

StopText = Annotated[str, Field(max_length=MAX_STOP_LENGTH, json_schema_extra={"minLength": 1})]

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
    check_extras(body, body.apis)
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
    include_obfuscation: bool | None = None


class TokenFields(CacheFields):
    """How tokens are chosen, and when that ends: what chat, completions and responses have in
    common."""

    min_tokens: int | None = of("min_tokens")
    temperature: float | None = of("temperature")
    top_p: float | None = of("top_p")
    top_k: int | None = of("top_k")
    min_p: float | None = of("min_p")
    presence_penalty: float | None = of("presence_penalty")
    frequency_penalty: float | None = of("frequency_penalty")
    repetition_penalty: float | None = of("repetition_penalty")
    logit_bias: dict[str, float] | None = of("logit_bias")
    seed: int | None = of("seed")
    stop: str | list[StopText] | None = of("stop")
    ignore_eos: bool | None = of("ignore_eos")
    structured_outputs: StructuredOutputs | None = of("structured_outputs")
    priority: int | None = of("priority")
    cache_salt: str | None = of("cache_salt")


class SamplingFields(TokenFields):
    """What chat and completions have in common."""

    model: str | None = of("model")
    stream: bool | None = of("stream")
    stream_options: StreamOptions | None = of("stream_options")
    n: int | None = of("n")
    max_tokens: int | None = of("max_tokens")
    stop_token_ids: list[TokenId] | None = of("stop_token_ids")
    include_stop_str_in_output: bool | None = of("include_stop_str_in_output")
    skip_special_tokens: bool | None = of("skip_special_tokens")
    response_format: ResponseFormat | None = of("response_format")
    guided_json: SchemaOrText | None = of("guided_json")
    guided_regex: str | None = of("guided_regex")
    guided_choice: list[str] | None = of("guided_choice")
    guided_grammar: str | None = of("guided_grammar")
    json_schema: SchemaOrText | None = of("json_schema")
    grammar: str | None = of("grammar")
    regex: str | None = of("regex")
    choice: list[str] | None = of("choice")
    user: str | None = of("user")
    return_token_ids: bool | None = of("return_token_ids")

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

    model_config = described(TEXT_PART)
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

    model_config = described(MESSAGE)
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[str | ContentPart] | None = Field(None, json_schema_extra={"minItems": 1})
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None


class FunctionTool(Marked):
    """What the model is told about a function."""

    name: str = Field(min_length=1, max_length=256)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    """Its arguments must be valid under `parameters`."""


class Tool(Marked):
    """A function that the model may ask for."""

    type: Literal["function"]
    function: FunctionTool


Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class TemplateFields(Strict):
    """How messages become a prompt; chat and tokenize have it in common."""

    messages: list[Message] = of("messages")
    tools: list[Tool] | None = of("tools")
    add_generation_prompt: bool | None = of("add_generation_prompt")
    continue_final_message: bool | None = of("continue_final_message")
    chat_template_kwargs: dict[str, Any] | None = of("chat_template_kwargs")
    reasoning_effort: Effort | None = of("reasoning_effort")

    def plain_messages(self) -> list[dict[str, Any]]:
        """The messages as the client sent them, without marks."""
        return [message.model_dump(exclude_unset=True) for message in self.messages]

    def plain_tools(self) -> list[dict[str, Any]] | None:
        """The tools as the client sent them, without marks; None: there are none."""
        return [tool.model_dump(exclude_unset=True) for tool in self.tools or ()] or None

    def template_kwargs(self) -> dict[str, Any]:
        """Further variables for the template; what the client names itself goes first."""
        effort = self.reasoning_effort
        given: dict[str, Any] = {} if effort is None else {"reasoning_effort": effort}
        if effort == "none":
            given["enable_thinking"] = False
        return given | (self.chat_template_kwargs or {})


class ChatRequest(TemplateFields, SamplingFields):
    """The body of /v1/chat/completions."""

    model_config = described(
        ONE_FORM,
        needs("stream_options", stream={"const": True}),
        needs("top_logprobs", logprobs={"const": True}),
        SOME_TOOLS,
    )
    apis: ClassVar[Api] = Api.CHAT
    max_completion_tokens: int | None = of("max_completion_tokens")
    logprobs: bool | None = of("logprobs")
    top_logprobs: int | None = of("top_logprobs")
    tool_choice: ToolChoice | None = of("tool_choice")
    """Read by `tool_choice.plan_tools`."""

    parallel_tool_calls: bool | None = of("parallel_tool_calls")
    modalities: list[TextOnly] | None = of("modalities")
    include_reasoning: bool | None = of("include_reasoning")

    @field_validator("modalities")
    @classmethod
    def _text_only(cls, value: list[str] | None) -> list[str] | None:
        if value is not None and value != ["text"]:
            raise ValueError("this server answers in text only")
        return value

    @field_validator("top_logprobs")
    @classmethod
    def _needs_logprobs(cls, value: int | None, info: Any) -> int | None:
        if value is not None and not info.data.get("logprobs"):
            raise ValueError("needs logprobs to be true")
        return value


TokenRow = Annotated[list[TokenId], Field(json_schema_extra={"minItems": 1})]
Prompt = str | list[str] | list[TokenId] | list[TokenRow]


class CompletionRequest(SamplingFields):
    """The body of /v1/completions."""

    model_config = described(ONE_FORM, needs("stream_options", stream={"const": True}))
    apis: ClassVar[Api] = Api.COMPLETIONS
    prompt: Prompt = of("prompt")
    max_tokens: int | None = of("max_tokens", Api.COMPLETIONS)
    suffix: str | None = of("suffix")
    echo: bool | None = of("echo")
    logprobs: int | None = of("logprobs", Api.COMPLETIONS)
    best_of: int | None = of("best_of")
    add_special_tokens: bool | None = of("add_special_tokens")

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
        if info.data.get("stream"):
            raise ValueError("cannot be streamed when it is above n: the best are known at the end")
        return value

    @field_validator("echo")
    @classmethod
    def _no_gap(cls, value: bool | None, info: Any) -> bool | None:
        if value and info.data.get("suffix") is not None:
            raise ValueError("a prompt with a suffix cannot be echoed; leave one of them out")
        return value

    @property
    def num_ranked(self) -> int | None:
        """Choices to be generated for each prompt, of which the n best are returned; None: n."""
        return None if self.best_of in (None, self.n or 1) else self.best_of


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

    model_config = described(NO_MESSAGES)
    prompt: str
    model: str | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class TokenizeContent(Strict):
    """The body of /tokenize as llama.cpp's clients send it."""

    content: str
    model: str | None = None
    add_special: bool | None = None
    """Whether the text begins with BOS; false by default."""

    parse_special: bool | None = None
    """Whether special tokens may be written in the text; true by default."""

    with_pieces: bool | None = None


class TemplateRequest(TemplateFields):
    """The body of /apply-template."""

    model: str | None = None


class TokenizeChat(TemplateRequest):
    """The body of /tokenize for messages."""

    return_token_strs: bool | None = None


class DetokenizeRequest(Strict):
    """The body of /detokenize."""

    tokens: list[TokenId]
    model: str | None = None
