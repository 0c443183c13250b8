"""Pieces of JSON schemas: what the checks of bodies want beyond types and ranges.

For the OpenAPI document alone. Each says what some check elsewhere does, and no more than that: a
body that the document does not allow is refused. Hence null stands wherever a field may be absent.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import ConfigDict, Field, WithJsonSchema

from kokuban.core.parameters import BIAS_RANGE

Schema = dict[str, Any]

NULL: Schema = {"type": "null"}
GIVEN: Schema = {"not": NULL}

TOKEN_ID = "token-id"
"""The format of token ids: `description` gives them the served vocabulary's limit."""

TokenId = Annotated[int, Field(json_schema_extra={"format": TOKEN_ID, "minimum": 0})]


def any_of(*schemas: Schema) -> Schema:
    """One of some schemas, at least."""
    return {"anyOf": list(schemas)}


def has(**fields: Schema) -> Schema:
    """An object with all of these fields."""
    return {"required": [*fields], "properties": fields}


def needs(name: str, **fields: Schema) -> Schema:
    """Where a field is given, others must be there too."""
    return {"if": has(**{name: GIVEN}), "then": has(**fields)}


def at_most_one(nothing: Mapping[str, Schema]) -> Schema:
    """Of some fields one asks for something, or none.

    Args:
        nothing: the fields, each with the values that ask for nothing.
    """
    return any_of(
        *(
            {"properties": {other: empty for other, empty in nothing.items() if other != name}}
            for name in nothing
        )
    )


def described(*rules: Schema) -> ConfigDict:
    """The configuration of a model whose schema has these rules beside its fields."""
    return ConfigDict(json_schema_extra={"allOf": list(rules)})


def _object(**fields: Schema) -> Schema:
    return {"type": "object", **has(**fields)}


def _nullable(schema: Schema) -> Schema:
    return any_of(schema, NULL)


_TEXT: Schema = {"type": "string"}
_SOME_TEXT: Schema = {"type": "string", "minLength": 1}
_JSON_TEXT: Schema = {"type": "string", "contentMediaType": "application/json"}
_JSON_SCHEMA: Schema = any_of({"type": "object"}, {"type": "boolean", "const": True})

NOT_BLANK = r"\S"
VARIABLES: Schema = {"propertyNames": {"pattern": "^[A-Za-z][A-Za-z0-9_]*$"}}
"""Of a template."""

BIASES: Schema = {
    "propertyNames": {"pattern": "^[0-9]{1,19}$"},
    "additionalProperties": {
        "type": "number",
        "minimum": BIAS_RANGE.low,
        "maximum": BIAS_RANGE.high,
    },
}

RESPONSE_FORMAT = any_of(
    _object(type={"const": "text"}),
    {
        **_object(type={"const": "json_object"}),
        "properties": {"type": {"const": "json_object"}, "schema": _nullable(_JSON_SCHEMA)},
    },
    _object(type={"const": "json_schema"}, json_schema=_object(schema=_JSON_SCHEMA)),
    {
        **_object(type={"const": "json_schema"}, schema=_JSON_SCHEMA),
        "not": {"required": ["json_schema"]},
    },
)

SCHEMA_OR_TEXT = any_of(_JSON_SCHEMA, _JSON_TEXT)

_CONSTRAINTS: dict[str, Schema] = {
    "json": SCHEMA_OR_TEXT,
    "json_object": {"const": True},
    "regex": _SOME_TEXT,
    "choice": {"type": "array", "minItems": 1, "items": _TEXT},
    "grammar": {"type": "string", "pattern": NOT_BLANK},
}
STRUCTURED_OUTPUTS: Schema = {
    "type": "object",
    **any_of(
        *(
            {
                **has(**{name: schema}),
                "additionalProperties": {"enum": [None, False]},
            }
            for name, schema in _CONSTRAINTS.items()
        )
    ),
}

_FUNCTION_CHOICE = any_of(
    _object(type={"const": "function"}, function=_object(name=_TEXT)),
    {**_object(type={"const": "function"}, name=_TEXT), "not": {"required": ["function"]}},
)
_MODE: Schema = {"enum": ["auto", "required"]}
_ALLOWED_TOOLS = _object(
    mode=_MODE, tools={"type": "array", "minItems": 1, "items": _FUNCTION_CHOICE}
)
TOOL_CHOICE = any_of(
    {"enum": ["none", "auto", "required"]},
    *_FUNCTION_CHOICE["anyOf"],
    _object(type={"const": "allowed_tools"}, allowed_tools=_ALLOWED_TOOLS),
)
"""As chat completions have it."""

TEXT_PART = any_of(
    has(type={"enum": ["text", "input_text", "output_text"]}, text=_TEXT),
    has(type={"const": "refusal"}, refusal=_TEXT),
)
"""A part of a message that can be read."""

MESSAGE: Schema = {
    "if": has(role={"const": "assistant"}),
    "then": any_of(
        has(content=GIVEN),
        has(tool_calls={"type": "array", "minItems": 1}),
        has(reasoning_content=_SOME_TEXT),
        has(reasoning=_SOME_TEXT),
    ),
    "else": has(content=GIVEN),
}
"""Only an assistant may say nothing, where it calls or thinks."""

BACKGROUND: Schema = {
    "if": has(background={"const": True}),
    "then": {"properties": {"store": {"not": {"const": False}}}},
}
NO_MESSAGES: Schema = {"not": {"required": ["messages"]}}
RESPONSE_INPUT = any_of(has(input=GIVEN), has(previous_response_id=GIVEN))
RESPONSE_TOOL: Schema = {
    "if": has(type={"enum": ["function", "custom", "namespace"]}),
    "then": has(name=_SOME_TEXT),
}
TEXT_FORMAT: Schema = {
    "if": has(type={"const": "json_schema"}),
    "then": has(schema=GIVEN),
}

_CALLS = _object(type={"enum": ["function", "custom"]}, name=_TEXT)
RESPONSE_TOOL_CHOICE = any_of(
    {"enum": ["none", "auto", "required"]},
    _CALLS,
    {
        **_object(
            type={"const": "allowed_tools"},
            tools={"type": "array", "minItems": 1, "items": _CALLS},
        ),
        "properties": {
            "type": {"const": "allowed_tools"},
            "mode": _MODE,
            "tools": {"type": "array", "minItems": 1, "items": _CALLS},
        },
    },
)

TEXT_BLOCK = has(type={"const": "text"}, text=_TEXT)
_RESULT_BLOCK = has(type={"const": "tool_result"}, tool_use_id=_SOME_TEXT)
_CALL_BLOCK = has(type={"const": "tool_use"}, id=_SOME_TEXT, name=_SOME_TEXT)
_THOUGHT_BLOCK = has(type={"enum": ["thinking", "redacted_thinking"]})


def _said(*blocks: Schema) -> Schema:
    return any_of(_SOME_TEXT, {"type": "array", "minItems": 1, "items": any_of(*blocks)})


TURN = any_of(
    has(role={"const": "user"}, content=_said(TEXT_BLOCK, _RESULT_BLOCK)),
    has(role={"const": "system"}, content=_said(TEXT_BLOCK)),
    has(
        role={"const": "assistant"},
        content=any_of(
            _TEXT,
            {"type": "array", "items": any_of(TEXT_BLOCK, _CALL_BLOCK, _THOUGHT_BLOCK)},
        ),
    ),
)
"""Which blocks Anthropic's turns hold. Empty may be the last one of an assistant only."""

CLIENT_TOOL = has(input_schema={"type": "object"})
NAMED_CHOICE: Schema = {"if": has(type={"const": "tool"}), "then": has(name=_SOME_TEXT)}
FORCED_CALL: Schema = {
    "if": has(tool_choice=has(type={"enum": ["any", "tool"]})),
    "then": has(tools={"type": "array", "minItems": 1}),
}
SOME_TOOLS: Schema = {
    "if": has(tool_choice=any_of({"const": "required"}, {"type": "object"})),
    "then": has(tools={"type": "array", "minItems": 1}),
}
NOTHING: Schema = {"enum": [None, [], {}, ""]}

TextOnly = Annotated[str, WithJsonSchema({"const": "text"})]
ResponseFormat = Annotated[dict[str, Any], WithJsonSchema(RESPONSE_FORMAT)]
StructuredOutputs = Annotated[dict[str, Any], WithJsonSchema(STRUCTURED_OUTPUTS)]
SchemaOrText = Annotated[dict[str, Any] | bool | str, WithJsonSchema(SCHEMA_OR_TEXT)]
ToolChoice = Annotated[str | dict[str, Any], WithJsonSchema(TOOL_CHOICE)]
ResponseToolChoice = Annotated[str | dict[str, Any], WithJsonSchema(RESPONSE_TOOL_CHOICE)]
