"""What a conversation consists of: checked as it comes, kept as it came, with an id.

An item is kept as the object that the client sent, or that an answer sent to it: what we do not
know of it comes back as it was.
"""

import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field, ValidationError

from kokuban.core.errors import RequestError
from kokuban.server.cache_models import Marked, Strict
from kokuban.server.errors import from_validation
from kokuban.server.schema_parts import TEXT_PART, described

ItemDict = dict[str, Any]

MAX_ID_LENGTH = 256
TEXT_KINDS = ("input_text", "output_text", "text", "refusal")
"""Parts that can be read."""


class Part(Marked):
    """A piece of a message or of a tool's result."""

    type: str
    text: str | None = None
    refusal: str | None = None


class TextPart(Part):
    """A part that must be readable; the kinds are checked by `check_items`."""

    model_config = described(TEXT_PART)


class MessageParam(Strict):
    """What somebody said, the model included."""

    type: Literal["message"] | None = None
    id: str | None = Field(None, max_length=MAX_ID_LENGTH)
    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[TextPart]
    status: Literal["in_progress", "completed", "incomplete"] | None = None


class FunctionCallParam(Strict):
    """A function that the model called."""

    type: Literal["function_call"]
    id: str | None = Field(None, max_length=MAX_ID_LENGTH)
    call_id: str = Field(min_length=1, max_length=MAX_ID_LENGTH)
    name: str = Field(min_length=1, max_length=256)
    namespace: str | None = None
    arguments: str
    status: Literal["in_progress", "completed", "incomplete"] | None = None


class CustomCallParam(Strict):
    """A tool that the model called with a text."""

    type: Literal["custom_tool_call"]
    id: str | None = Field(None, max_length=MAX_ID_LENGTH)
    call_id: str = Field(min_length=1, max_length=MAX_ID_LENGTH)
    name: str = Field(min_length=1, max_length=256)
    namespace: str | None = None
    input: str


class CallResultParam(Strict):
    """What came of a call."""

    type: Literal["function_call_output", "custom_tool_call_output"]
    id: str | None = Field(None, max_length=MAX_ID_LENGTH)
    call_id: str = Field(min_length=1, max_length=MAX_ID_LENGTH)
    output: str | list[TextPart]


class ReasoningParam(Strict):
    """What the model thought."""

    type: Literal["reasoning"]
    id: str | None = Field(None, max_length=MAX_ID_LENGTH)
    summary: list[Part] | None = None
    content: list[Part] | None = None
    encrypted_content: str | None = None


class ReferenceParam(Strict):
    """An item of an earlier response, by its id."""

    type: Literal["item_reference"] | None = None
    id: str = Field(min_length=1, max_length=MAX_ID_LENGTH)


MODELS: Mapping[str, type[Strict]] = {
    "message": MessageParam,
    "function_call": FunctionCallParam,
    "function_call_output": CallResultParam,
    "custom_tool_call": CustomCallParam,
    "custom_tool_call_output": CallResultParam,
    "reasoning": ReasoningParam,
    "item_reference": ReferenceParam,
}

_PREFIXES = {
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "reasoning": "rs",
}


def check_items(given: Sequence[Any]) -> list[ItemDict]:
    """Items as they came, each with its `type`.

    Raises:
        RequestError: one is of a kind that this server cannot read, or has something wrong in it.
    """
    return [_check(item, f"input[{index}]") for index, item in enumerate(given)]


def _check(item: Any, path: str) -> ItemDict:
    if not isinstance(item, dict):
        raise RequestError(f"{path} is no object", param=path)
    kind = item.get("type") or ("message" if "role" in item else "item_reference")
    model = MODELS.get(kind) if isinstance(kind, str) else None
    if model is None:
        raise RequestError(
            f"{path} is of type {str(kind)[:64]!r}, which this server cannot read; it reads "
            f"{', '.join(MODELS)}",
            param=f"{path}.type",
            code="unsupported_item",
        )
    try:
        checked = model.model_validate(item)
    except ValidationError as error:
        raise _located(from_validation(error), path) from None
    if isinstance(checked, MessageParam) and isinstance(checked.content, list):
        _check_parts(checked.content, f"{path}.content")
    if isinstance(checked, CallResultParam) and isinstance(checked.output, list):
        _check_parts(checked.output, f"{path}.output")
    return {**item, "type": kind}


def _located(error: RequestError, path: str) -> RequestError:
    param = f"{path}.{error.param}" if error.param else path
    text = str(error).removeprefix(f"{error.param}: ").removeprefix("the body: ")
    return RequestError(f"{param}: {text}", param=param, code=error.code)


def _check_parts(parts: Sequence[Part], path: str) -> None:
    for index, part in enumerate(parts):
        where = f"{path}[{index}]"
        if part.type not in TEXT_KINDS:
            raise RequestError(
                f"{where} is of type {part.type[:64]!r}; this model reads text only, in parts of "
                f"type {', '.join(TEXT_KINDS)}",
                param=f"{where}.type",
                code="unsupported_content",
            )
        name = "refusal" if part.type == "refusal" else "text"
        if getattr(part, name) is None:
            raise RequestError(f"{where}.{name} is missing", param=f"{where}.{name}")


def with_id(item: ItemDict) -> ItemDict:
    """The same item under its own id, or a new one."""
    if item.get("id"):
        return item
    prefix = _PREFIXES.get(item["type"], "msg")
    return {**item, "id": f"{prefix}_{secrets.token_hex(12)}"}


def as_listed(item: ItemDict) -> ItemDict:
    """An item in the full form in which the API lists it."""
    listed = {**item, "status": item.get("status") or "completed"}
    if item["type"] == "message" and isinstance(item["content"], str):
        listed["content"] = [_text_part(item["role"], item["content"])]
    if item["type"] == "reasoning":
        listed["summary"] = item.get("summary") or []
        listed["content"] = item.get("content") or []
    return listed


def _text_part(role: str, text: str) -> dict[str, Any]:
    if role == "assistant":
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "input_text", "text": text}
