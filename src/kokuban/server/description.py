"""The OpenAPI document: made from the routes, their docstrings, and the bodies named here.

Nothing imports this module before somebody asks for the document.
"""

import inspect
import re
from collections.abc import Sequence
from typing import Any

import msgspec
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.routing import Route

from kokuban import __version__
from kokuban.server import embedding_models, explain, openai_models, openai_responses, sessions
from kokuban.server.routes import Endpoint

REF = "#/components/schemas/{}"

_BODIES: dict[str, type[BaseModel]] = {
    "/v1/chat/completions": openai_models.ChatRequest,
    "/v1/completions": openai_models.CompletionRequest,
    "/v1/embeddings": embedding_models.EmbeddingRequest,
    "/tokenize": openai_models.TokenizeText,
    "/detokenize": openai_models.DetokenizeRequest,
    "/v1/sessions/{session}/pause": sessions.PauseRequest,
}

# A path, or a method and a path where its methods differ.
_ANSWERS: dict[str, type[msgspec.Struct]] = {
    "/v1/chat/completions": openai_responses.ChatCompletion,
    "/v1/completions": openai_responses.Completion,
    "/v1/embeddings": embedding_models.EmbeddingList,
    "/v1/models": openai_responses.ModelList,
    "/v1/models/{model}": openai_responses.ModelCard,
    "/tokenize": openai_responses.Tokens,
    "/detokenize": openai_responses.Text,
    "/v1/explain/{request_id}": explain.Explanation,
    "/v1/sessions/{session}/pause": sessions.SessionBody,
    "/v1/sessions/{session}/resume": sessions.SessionBody,
    "/v1/sessions/{session}": sessions.SessionBody,
    "delete /v1/sessions/{session}": sessions.SessionDeleted,
}

_STREAMS = frozenset({"/v1/chat/completions", "/v1/completions"})

_FEEDS = frozenset({"/v1/kv_events"})
"""Streams that are never anything else."""

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


def describe(routes: Sequence[Route]) -> dict[str, Any]:
    """The document of these routes; those that are not to be shown are left out."""
    models: list[type[BaseModel]] = [*_BODIES.values(), openai_models.TokenizeChat]
    _, bodies = models_json_schema(
        [(model, "validation") for model in models], ref_template=REF.format("{model}")
    )
    _, answers = msgspec.json.schema_components(
        list(_ANSWERS.values()), ref_template=REF.format("{name}")
    )
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        if route.include_in_schema:
            [method] = route.methods or {"GET"}
            operations = paths.setdefault(route.path_format, {})
            operations[method.lower()] = _operation(method.lower(), route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Kokuban", "version": __version__},
        "paths": paths,
        "components": {"schemas": bodies["$defs"] | answers | {"ErrorEnvelope": _ERROR}},
    }


def _operation(method: str, route: Route) -> dict[str, Any]:
    path, endpoint = route.path_format, route.endpoint
    assert isinstance(endpoint, Endpoint), f"{path} was not made by our Router"
    handler = endpoint.handler
    operation: dict[str, Any] = {
        "summary": handler.__name__.replace("_", " ").title(),
        "description": inspect.cleandoc(handler.__doc__ or ""),
        "operationId": re.sub(r"\W", "_", f"{handler.__name__}{path}_{method}"),
    }
    if names := list(route.param_convertors):
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in names
        ]
    if body := _BODIES.get(path):
        schema: dict[str, Any] = _ref(body.__name__)
        if path == "/tokenize":
            schema = {"anyOf": [schema, _ref("TokenizeChat")]}
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schema}},
        }
    content: dict[str, Any] = {"application/json": {"schema": {}}}
    if answer := _ANSWERS.get(f"{method} {path}", _ANSWERS.get(path)):
        content = {"application/json": {"schema": _ref(answer.__name__)}}
    if path in _STREAMS | _FEEDS:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    if path in _FEEDS:
        del content["application/json"]
    operation["responses"] = {
        "200": {"description": "The answer.", "content": content},
        "default": {
            "description": "Anything that is no success.",
            "content": {"application/json": {"schema": _ref("ErrorEnvelope")}},
        },
    }
    return operation


def _ref(name: str) -> dict[str, str]:
    return {"$ref": REF.format(name)}
