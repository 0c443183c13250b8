"""The OpenAPI document: made from the routes, their docstrings, and the bodies named here.

Nothing imports this module before somebody asks for the document.
"""

import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.routing import Route

from kokuban import __version__
from kokuban.server.described import (
    ANSWERS,
    BODIES,
    ENDED_BY_ENVELOPE,
    EVENTS,
    FEEDS,
    OF_RESPONSE,
    PATH_SCHEMAS,
    QUERIES,
    SMALL_ANSWERS,
    TEXTS,
    statuses,
    structs,
)
from kokuban.server.messages import errors as messages_errors
from kokuban.server.openai_models import ChatRequest, CompletionRequest
from kokuban.server.parameter import Api, Fate, Parameter
from kokuban.server.parameters_other import OTHER
from kokuban.server.responses.items import MODELS as ITEM_MODELS
from kokuban.server.routes import Endpoint
from kokuban.server.schema_parts import TOKEN_ID

_GENERATING: Mapping[Api, type[BaseModel]] = {
    Api.CHAT: ChatRequest,
    Api.COMPLETIONS: CompletionRequest,
}

REF = "#/components/schemas/{}"

_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}


class Served(NamedTuple):
    """What the document says of the model that is served."""

    names: Sequence[str]
    """Of the model. They are examples, no limit: a client that was made from one server's document
    may talk to another."""

    vocab_size: int


def describe(routes: Sequence[Route], served: Served | None = None) -> dict[str, Any]:
    """The document of these routes; those that are not to be shown are left out.

    Args:
        served: None: of any model.
    """
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        if route.include_in_schema:
            [method] = route.methods or {"GET"}
            operations = paths.setdefault(route.path_format, {})
            operations[method.lower()] = _operation(method.lower(), route)
    schemas = _schemas()
    if served is not None:
        for model in set().union(*BODIES.values()):
            if (name := schemas[model.__name__]["properties"].get("model")) is not None:
                name["examples"] = [*served.names]
        _limit_ids(schemas, served.vocab_size - 1)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Kokuban", "version": __version__},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _limit_ids(schema: Any, largest: int) -> None:
    """Give every schema of token ids its limit."""
    if isinstance(schema, dict):
        if schema.get("format") == TOKEN_ID:
            schema["maximum"] = largest
        for inner in schema.values():
            _limit_ids(inner, largest)
    elif isinstance(schema, list):
        for inner in schema:
            _limit_ids(inner, largest)


def _schemas() -> dict[str, Any]:
    """Every schema that has a name."""
    parts: set[type[BaseModel]] = set(ITEM_MODELS.values())
    models = sorted(parts.union(*BODIES.values()), key=lambda model: model.__name__)
    _, bodies = models_json_schema(
        [(model, "validation") for model in models], ref_template=REF.format("{model}")
    )
    for parameter in OTHER:
        if parameter.fate is Fate.IGNORED:
            for api in parameter.apis:
                properties = bodies["$defs"][_GENERATING[api].__name__]["properties"]
                properties[parameter.name] = _without_effect(parameter)
    _, answers = msgspec.json.schema_components(structs(), ref_template=REF.format("{name}"))
    for event in OF_RESPONSE:
        answers[event.__name__]["properties"]["response"] = _ref("ResponseBody")
    return {**bodies["$defs"], **answers, "ErrorEnvelope": _ERROR}


def _without_effect(parameter: Parameter) -> dict[str, Any]:
    """Of a field that is taken and changes nothing; its type must be right all the same."""
    kinds = [{"type": kind} for kind in sorted(parameter.json_types)]
    words = f"Accepted, without effect. {parameter.meaning}"
    return {"anyOf": [*kinds, {"type": "null"}], "default": None, "description": words}


def _operation(method: str, route: Route) -> dict[str, Any]:
    path, endpoint = route.path_format, route.endpoint
    assert isinstance(endpoint, Endpoint), f"{path} was not made by our Router"
    handler, key = endpoint.handler, f"{method} {path}"
    operation: dict[str, Any] = {
        "summary": handler.__name__.replace("_", " ").title(),
        "description": inspect.cleandoc(handler.__doc__ or ""),
        "operationId": re.sub(r"\W", "_", f"{handler.__name__}{path}_{method}"),
    }
    names = list(route.param_convertors)
    if parameters := _parameters(key, names):
        operation["parameters"] = parameters
    if bodies := BODIES.get(path):
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": _any_of(bodies)}},
        }
    error = "MessagesError" if messages_errors.is_ours(path) else "ErrorEnvelope"
    envelope = {"application/json": {"schema": _ref(error)}}
    operation["responses"] = {"200": {"description": "The answer.", "content": _content(key)}} | {
        str(status): {"description": words, "content": envelope}
        for status, words in statuses(key, endpoint.scope, in_path=bool(names))
    }
    return operation


def _content(key: str) -> dict[str, Any]:
    """What a success holds, by its type."""
    path = key.partition(" ")[2]
    content: dict[str, Any] = {}
    if path in TEXTS:
        content["text/plain"] = {"schema": {"type": "string"}}
    elif key not in FEEDS:
        answer = ANSWERS.get(key, ANSWERS.get(path))
        schema = SMALL_ANSWERS[path] if answer is None else _ref(answer.__name__)
        content["application/json"] = {"schema": schema}
    if kinds := EVENTS.get(key):
        also = ["ErrorEnvelope"] if key in ENDED_BY_ENVELOPE else []
        content["text/event-stream"] = {"schema": _any_of(kinds, also)}
    return content


def _parameters(key: str, names: Sequence[str]) -> list[dict[str, Any]]:
    """Those of the path, then those behind it."""
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": PATH_SCHEMAS.get(name, {"type": "string"}),
        }
        for name in names
    ] + [
        {"name": name, "in": "query", "schema": schema}
        for name, schema in QUERIES.get(key, {}).items()
    ]


def _any_of(kinds: Sequence[type], also: Sequence[str] = ()) -> dict[str, Any]:
    """One of some schemas."""
    found = [_ref(name) for name in (*(kind.__name__ for kind in kinds), *also)]
    return found[0] if len(found) == 1 else {"anyOf": found}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": REF.format(name)}
