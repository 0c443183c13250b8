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
from kokuban.server.messages import answers as messages_answers
from kokuban.server.messages import errors as messages_errors
from kokuban.server.messages import models as messages_models
from kokuban.server.responses import bodies as responses
from kokuban.server.responses.items import MODELS as ITEM_MODELS
from kokuban.server.responses.request import ResponseRequest
from kokuban.server.routes import Endpoint

REF = "#/components/schemas/{}"

_BODIES: dict[str, type[BaseModel]] = {
    "/v1/chat/completions": openai_models.ChatRequest,
    "/v1/completions": openai_models.CompletionRequest,
    "/v1/responses": ResponseRequest,
    "/v1/responses/input_tokens": ResponseRequest,
    "/v1/messages": messages_models.MessagesRequest,
    "/v1/messages/count_tokens": messages_models.CountRequest,
    "/v1/embeddings": embedding_models.EmbeddingRequest,
    "/tokenize": openai_models.TokenizeText,
    "/detokenize": openai_models.DetokenizeRequest,
    "/v1/sessions/{session}/pause": sessions.PauseRequest,
}

# A path, or a method and a path where its methods differ.
_ANSWERS: dict[str, type[msgspec.Struct]] = {
    "/v1/chat/completions": openai_responses.ChatCompletion,
    "/v1/completions": openai_responses.Completion,
    "/v1/responses": responses.ResponseBody,
    "/v1/responses/input_tokens": responses.InputTokens,
    "/v1/responses/{response_id}": responses.ResponseBody,
    "delete /v1/responses/{response_id}": responses.ResponseDeleted,
    "/v1/responses/{response_id}/cancel": responses.ResponseBody,
    "/v1/responses/{response_id}/input_items": responses.ItemList,
    "/v1/messages": messages_answers.MessageAnswer,
    "/v1/messages/count_tokens": messages_answers.TokenCount,
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

_STREAMS = frozenset(
    {
        "post /v1/chat/completions",
        "post /v1/completions",
        "post /v1/messages",
        "post /v1/responses",
        "get /v1/responses/{response_id}",
    }
)
"""Answers that may be streams."""

_FEEDS = frozenset({"get /v1/kv_events"})
"""Streams that are never anything else."""

_QUERIES: dict[str, dict[str, dict[str, Any]]] = {
    "get /v1/responses/{response_id}": {
        "stream": {"type": "boolean"},
        "starting_after": {"type": "integer", "minimum": -1},
    },
    "get /v1/responses/{response_id}/input_items": {
        "limit": {"type": "integer", "minimum": 1, "maximum": 100},
        "order": {"enum": ["asc", "desc"]},
        "after": {"type": "string"},
    },
}
"""What may stand behind a path, with its schema."""

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
    parts: set[type[BaseModel]] = {*ITEM_MODELS.values(), openai_models.TokenizeChat}
    models = sorted(parts.union(_BODIES.values()), key=lambda model: model.__name__)
    _, bodies = models_json_schema(
        [(model, "validation") for model in models], ref_template=REF.format("{model}")
    )
    _, answers = msgspec.json.schema_components(
        [*dict.fromkeys(_ANSWERS.values()), messages_errors.MessagesError],
        ref_template=REF.format("{name}"),
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
    if parameters := _parameters(f"{method} {path}", list(route.param_convertors)):
        operation["parameters"] = parameters
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
    if f"{method} {path}" in _STREAMS | _FEEDS:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    if f"{method} {path}" in _FEEDS:
        del content["application/json"]
    error = "MessagesError" if messages_errors.is_ours(path) else "ErrorEnvelope"
    operation["responses"] = {
        "200": {"description": "The answer.", "content": content},
        "default": {
            "description": "Anything that is no success.",
            "content": {"application/json": {"schema": _ref(error)}},
        },
    }
    return operation


def _parameters(operation: str, names: Sequence[str]) -> list[dict[str, Any]]:
    """Those of the path, then those behind it."""
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in names
    ] + [
        {"name": name, "in": "query", "schema": schema}
        for name, schema in _QUERIES.get(operation, {}).items()
    ]


def _ref(name: str) -> dict[str, str]:
    return {"$ref": REF.format(name)}
