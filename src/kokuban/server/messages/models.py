"""The bodies of Anthropic's Messages API, as pydantic models.

As with OpenAI's: types are strict, null means absent, unknown fields are named in a header, and
what would change the answer and cannot be served is refused by name. Which content blocks can be
read is decided by `convert`.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from kokuban.core.sampling_params import MAX_STOPS
from kokuban.server.cache_models import CacheControl, Marked, Strict
from kokuban.server.parameters import of
from kokuban.server.parameters_served import MAX_STOP_LENGTH, MAX_TOOLS
from kokuban.server.schema_parts import (
    CLIENT_TOOL,
    FORCED_CALL,
    NAMED_CHOICE,
    NOTHING,
    TEXT_BLOCK,
    TURN,
    described,
)


class ResultBlock(Marked):
    """A piece of what a tool answered."""

    model_config = described(TEXT_BLOCK)
    type: str
    text: str | None = None


class Block(Marked):
    """A piece of a turn: text, thinking, redacted_thinking, tool_use or tool_result."""

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | list[ResultBlock] | None = None
    is_error: bool | None = None


class SystemBlock(Block):
    """A piece of the system prompt: text."""

    model_config = described(TEXT_BLOCK)


class InputMessage(Strict):
    """One turn. Turns of one role that follow each other are one."""

    model_config = described(TURN)
    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class InputTool(Marked):
    """A tool that the client runs. One that Anthropic runs has no schema of its own."""

    model_config = described(CLIENT_TOOL)
    name: str = Field(min_length=1, max_length=256)
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class ToolChoice(Strict):
    """Whether and which tools the model must use."""

    model_config = described(NAMED_CHOICE)
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Strict):
    """Whether the model thinks before it answers. The budget is accepted, not kept to."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = Field(None, ge=1)
    display: str | None = None


class OutputFormat(Strict):
    """The JSON schema of the answer."""

    type: Literal["json_schema"]
    json_schema: dict[str, Any] = Field(alias="schema")


class OutputConfig(Strict):
    """How the answer is to look."""

    format: OutputFormat | None = None
    effort: str | None = None


class Metadata(Strict):
    """Whom a request is for."""

    user_id: str | None = None


class Conversation(Strict):
    """What both bodies have: counting takes what is sent for an answer."""

    model_config = described(FORCED_CALL)
    model: str | None = None
    """Beyond Anthropic: the served one where it is left out or empty."""

    messages: list[InputMessage] = Field(min_length=1)
    system: str | list[SystemBlock] | None = None
    tools: list[InputTool] | None = Field(None, max_length=MAX_TOOLS)
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    """The older place of `output_config.format`."""

    cache_control: CacheControl | None = None
    """A mark at the end of the whole prompt."""

    container: Any = Field(None, json_schema_extra=NOTHING)
    mcp_servers: Any = Field(None, json_schema_extra=NOTHING)
    chat_template_kwargs: dict[str, Any] | None = of("chat_template_kwargs")
    """Beyond Anthropic, as in chat completions."""

    stream: bool | None = None
    stop_sequences: list[Annotated[str, Field(min_length=1, max_length=MAX_STOP_LENGTH)]] | None = (
        Field(None, json_schema_extra={"maxItems": MAX_STOPS})
    )
    temperature: float | None = of("temperature")
    top_p: float | None = of("top_p")
    top_k: int | None = of("top_k")
    metadata: Metadata | None = None
    service_tier: str | None = None
    seed: int | None = of("seed")
    """This and what follows are beyond Anthropic, as in chat completions."""

    priority: int | None = of("priority")
    prompt_cache_key: str | None = of("prompt_cache_key")
    cache_salt: str | None = of("cache_salt")

    betas: Any = None
    """This and what follows change nothing here, whatever they say."""

    context_management: Any = None
    diagnostics: Any = None
    inference_geo: Any = None
    speed: Any = None
    user_profile_id: Any = None
    workspace_id: Any = None

    @field_validator("container", "mcp_servers")
    @classmethod
    def _nothing_runs_here(cls, value: Any) -> Any:
        if value not in (None, [], {}, ""):
            raise ValueError("this server runs no tools; let the client run them, or leave it out")
        return value


class MessagesRequest(Conversation):
    """The body of /v1/messages."""

    max_tokens: int = Field(ge=1, le=2**62)


class CountRequest(Conversation):
    """The body of /v1/messages/count_tokens."""

    max_tokens: int | None = None
