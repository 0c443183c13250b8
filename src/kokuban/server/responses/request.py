"""The body of POST /v1/responses.

Fields that we know and cannot serve are refused by name (`REFUSED`); those that we do not know are
ignored, since agents send fields of their own.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema, field_validator, model_validator

from kokuban.core.errors import RequestError
from kokuban.core.parameters import MAX_LOGPROBS
from kokuban.server.cache_models import Strict
from kokuban.server.openai_models import TokenFields
from kokuban.server.output_format import FORM_FIELDS
from kokuban.server.parameters import of
from kokuban.server.parameters_served import MAX_TOOLS
from kokuban.server.responses.items import MODELS, ItemDict, check_items
from kokuban.server.schema_parts import (
    BACKGROUND,
    RESPONSE_INPUT,
    RESPONSE_TOOL,
    SOME_TOOLS,
    TEXT_FORMAT,
    ResponseToolChoice,
    described,
)

MAX_METADATA = 16
LOGPROBS = "message.output_text.logprobs"
ENCRYPTED = "reasoning.encrypted_content"

_OUTPUT = "use max_output_tokens"
REFUSED = {
    "conversation": "conversations are not kept; use previous_response_id",
    "prompt": "there are no prompt templates here; send instructions and input",
    "context_management": "nothing is compacted here; send fewer items",
    "moderation": "nothing is moderated here",
    "messages": "use input",
    "max_tokens": _OUTPUT,
    "max_completion_tokens": _OUTPUT,
    "n": "a response has one answer; use /v1/chat/completions",
    "response_format": "use text.format",
} | {
    name: "use text.format, or structured_outputs"
    for name in FORM_FIELDS
    if name not in ("response_format", "structured_outputs")
}
"""Known fields that would change the answer and that we do not serve, with the way out."""

_ITEMS = [
    {"$ref": f"#/components/schemas/{name}"}
    for name in sorted({m.__name__ for m in MODELS.values()})
]
Items = Annotated[
    str | list[Any],
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"anyOf": _ITEMS}}]}),
]


class Reasoning(Strict):
    """How much the model is to think. There are no summaries: the thoughts themselves are sent."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None
    context: Literal["auto", "current_turn", "all_turns"] | None = None
    mode: str | None = None


class TextFormat(Strict):
    """The form of the answer; checked further where chat's is."""

    model_config = described(TEXT_FORMAT)
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class TextOptions(Strict):
    """What the text is to be like."""

    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    """Accepted, without effect."""


class AnyTool(Strict):
    """A tool of any kind; see `tools` for those that are served."""

    model_config = described(RESPONSE_TOOL)
    type: str


class ResponseStreamOptions(Strict):
    """Accepted, without effect: nothing is obfuscated."""

    include_obfuscation: bool | None = None


class ResponseRequest(TokenFields):
    """The body of /v1/responses, and of /v1/responses/input_tokens."""

    model_config = described(RESPONSE_INPUT, BACKGROUND, SOME_TOOLS)
    model: str | None = None
    """The served one where it is left out or empty."""

    input: Items | None = None
    instructions: str | None = None
    previous_response_id: str | None = Field(None, max_length=256)
    store: bool | None = None
    background: bool | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    include: list[str] | None = Field(None, max_length=64)
    tools: list[AnyTool] | None = Field(None, max_length=MAX_TOOLS)
    tool_choice: ResponseToolChoice | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: int | None = Field(None, ge=1)
    """Counts the calls of built-in tools, of which there are none."""

    max_output_tokens: int | None = Field(None, ge=1, le=2**62)
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    text: TextOptions | None = None
    reasoning: Reasoning | None = None
    truncation: Literal["auto", "disabled"] | None = None
    metadata: (
        dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]] | None
    ) = Field(None, max_length=MAX_METADATA)
    service_tier: str | None = None
    user: str | None = None
    safety_identifier: str | None = Field(None, max_length=64)

    chat_template_kwargs: dict[str, Any] | None = of("chat_template_kwargs")
    """Beyond OpenAI, as are most of `TokenFields`."""

    @model_validator(mode="after")
    def _served(self) -> "ResponseRequest":
        for name, value in (self.model_extra or {}).items():
            if name in REFUSED and value is not None:
                raise RequestError(f"{name}: {REFUSED[name]}", param=name, code="unsupported_field")
        if self.background and self.store is False:
            raise RequestError(
                "background can only be used when `store` is true: nobody could ask for the answer",
                param="background",
            )
        return self

    @field_validator("input", mode="before")
    @classmethod
    def _readable(cls, value: object) -> object:
        if isinstance(value, list):
            return check_items(value)
        if value is None or isinstance(value, str):
            return value
        raise ValueError("must be a text or a list of items")

    @property
    def items(self) -> list[ItemDict]:
        """What is new in this turn."""
        if isinstance(self.input, str):
            return [{"type": "message", "role": "user", "content": self.input}]
        return self.input or []

    @property
    def wants_store(self) -> bool:
        return self.store is not False

    def wants(self, included: str) -> bool:
        """Whether something that is not always sent is asked for."""
        return included in (self.include or ())
