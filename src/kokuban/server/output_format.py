"""From what a client says of the form of its answer to the one grammar text that the engine knows.

Clients ask in many ways: OpenAI's `response_format`, vLLM's `structured_outputs` and `guided_*`,
llama.cpp's `json_schema` and `grammar`, SGLang's `regex`. One request has one of them at most.
A form that cannot be followed is an error that names its field; it is never left out.
"""

import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any, NamedTuple

from kokuban.core.errors import RequestError
from kokuban.engine.generation import TextDelta
from kokuban.sampling.grammar import FAILED
from kokuban.text.grammar import (
    choice_grammar,
    json_object_grammar,
    json_schema_grammar,
    regex_grammar,
    written_grammar,
)

FORM_FIELDS = (
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "json_schema",
    "grammar",
    "regex",
    "choice",
)
"""Fields of a body that say what the answer must look like."""

_FORMATS = "'text', 'json_object' and 'json_schema'"


class OutputForm(NamedTuple):
    """What an answer must match."""

    grammar: str
    param: str
    """The field that asked for it, for errors."""


def output_form(body: object) -> OutputForm | None:
    """The form that a body asks for; None: any text.

    Args:
        body: whose attributes are named as `FORM_FIELDS`; it need not have them all.

    Raises:
        RequestError: two fields ask for a form, or one of them asks for what there is not.
    """
    asked = {
        name: value
        for name in FORM_FIELDS
        if (value := getattr(body, name, None)) is not None
        and not (name == "response_format" and _is_text(value))
    }
    if len(asked) > 1:
        first, second, *_ = asked
        raise RequestError(
            f"{first} and {second} both say what the answer must look like; send one of them",
            param=second,
        )
    for name, value in asked.items():
        return OutputForm(_grammar(name, value), name)
    return None


async def naming(deltas: AsyncGenerator[TextDelta], param: str) -> AsyncGenerator[TextDelta]:
    """The same deltas; an error about the grammar is the client's and names the field.

    Also one that comes late: a grammar may be small and its matching expensive all the same.
    """
    async with aclosing(deltas):
        try:
            async for delta in deltas:
                if delta.error is not None and delta.error.startswith(FAILED):
                    raise RequestError(delta.error, param=param)
                yield delta
        except RequestError as error:
            if error.param == "grammar":
                error.param = param
            raise


def response_format_grammar(value: Mapping[str, Any], param: str) -> str | None:
    """The grammar of OpenAI's `response_format`, or of `text.format`; None for text.

    Raises:
        RequestError: there is no such format, or its schema cannot be followed.
    """
    kind = value.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        schema = value.get("schema")  # llama.cpp's way to say json_schema
        return json_object_grammar() if schema is None else _schema(schema, param)
    if kind == "json_schema":
        return _json_schema(value, param)
    raise RequestError(
        f"{param}: the type {str(kind)[:64]!r} is unknown; there are {_FORMATS}", param=param
    )


def _json_schema(value: Mapping[str, Any], param: str) -> str:
    """Chat has the schema one level deeper than responses has it."""
    inner = value.get("json_schema", value)
    if not isinstance(inner, Mapping) or inner.get("schema") is None:
        raise RequestError(
            f"{param}: a format of type 'json_schema' needs the schema under 'schema'", param=param
        )
    return _schema(inner["schema"], param)


def _is_text(value: object) -> bool:
    return isinstance(value, Mapping) and value.get("type") == "text"


def _grammar(name: str, value: object) -> str:
    if name == "response_format":
        if not isinstance(value, Mapping):
            raise _wrong(name, "an object")
        return response_format_grammar(value, name) or ""
    if name == "structured_outputs":
        return _structured_outputs(value)
    return _MAKERS[name.removeprefix("guided_")](value, name)


def _structured_outputs(value: object) -> str:
    """vLLM's object with exactly one kind of constraint."""
    name = "structured_outputs"
    if not isinstance(value, Mapping):
        raise _wrong(name, "an object")
    given = {kind: each for kind, each in value.items() if each not in (None, False)}
    for kind in given:
        if kind not in _MAKERS:
            raise RequestError(
                f"{name} has {kind!r}, which is not supported; there are {', '.join(_STRUCTURED)}",
                param=name,
            )
    if len(given) != 1:
        raise RequestError(
            f"{name} holds {len(given)} constraints; send exactly one of {', '.join(_STRUCTURED)}",
            param=name,
        )
    [(kind, constraint)] = given.items()
    return _MAKERS[kind](constraint, name)


def _schema(value: object, param: str) -> str:
    return json_schema_grammar(value, param=param)


def _json(value: object, param: str) -> str:
    """A schema; vLLM also takes it as a text."""
    return _schema(_parsed(value, param) if isinstance(value, str) else value, param)


def _parsed(text: str, param: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise RequestError(f"{param}: the schema is a text that is no JSON", param=param) from None


def _regex(value: object, param: str) -> str:
    if not isinstance(value, str) or not value:
        raise _wrong(param, "a regular expression")
    return regex_grammar(value, param=param)


def _written(value: object, param: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _wrong(param, "a grammar in Lark or GBNF")
    return written_grammar(value, param=param)


def _choice(value: object, param: str) -> str:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise _wrong(param, "a list of texts")
    return choice_grammar(value, param=param)


def _any_object(value: object, param: str) -> str:
    if value is not True:
        raise _wrong(f"{param}.json_object", "true")
    return json_object_grammar()


def _wrong(name: str, wanted: str) -> RequestError:
    return RequestError(f"{name} must be {wanted}", param=name.partition(".")[0])


_MAKERS: Mapping[str, Callable[[object, str], str]] = {
    "json": _json,
    "json_schema": _json,
    "json_object": _any_object,
    "regex": _regex,
    "choice": _choice,
    "grammar": _written,
}
_STRUCTURED = ("json", "json_object", "regex", "choice", "grammar")
