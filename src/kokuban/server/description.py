"""The OpenAPI document: FastAPI's, with the bodies that our routes read and send themselves."""

from typing import Any

import msgspec
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from kokuban.server import explain, openai_models, openai_responses, sessions

REF = "#/components/schemas/{}"

_BODIES: dict[str, type[BaseModel]] = {
    "/v1/chat/completions": openai_models.ChatRequest,
    "/v1/completions": openai_models.CompletionRequest,
    "/tokenize": openai_models.TokenizeText,
    "/detokenize": openai_models.DetokenizeRequest,
    "/v1/sessions/{session}/pause": sessions.PauseRequest,
}

# A path, or a method and a path where its methods differ.
_ANSWERS: dict[str, type[msgspec.Struct]] = {
    "/v1/chat/completions": openai_responses.ChatCompletion,
    "/v1/completions": openai_responses.Completion,
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


def describe(document: dict[str, Any]) -> dict[str, Any]:
    """Add bodies, answers and the error envelope to FastAPI's document, in place."""
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    if "ErrorEnvelope" in schemas:
        return document
    models: list[type[BaseModel]] = [*_BODIES.values(), openai_models.TokenizeChat]
    _, bodies = models_json_schema(
        [(model, "validation") for model in models], ref_template=REF.format("{model}")
    )
    _, answers = msgspec.json.schema_components(
        list(_ANSWERS.values()), ref_template=REF.format("{name}")
    )
    schemas.clear()
    schemas |= bodies["$defs"] | answers | {"ErrorEnvelope": _ERROR}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            _describe_operation(method, path, operation)
    return document


def _describe_operation(method: str, path: str, operation: dict[str, Any]) -> None:
    responses = operation["responses"]
    responses.pop("422", None)
    if body := _BODIES.get(path):
        schema: dict[str, Any] = _ref(body.__name__)
        if path == "/tokenize":
            schema = {"anyOf": [schema, _ref("TokenizeChat")]}
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schema}},
        }
    if answer := _ANSWERS.get(f"{method} {path}", _ANSWERS.get(path)):
        content: dict[str, Any] = {"application/json": {"schema": _ref(answer.__name__)}}
        if path in _STREAMS:
            content["text/event-stream"] = {"schema": {"type": "string"}}
        responses["200"] = {"description": "The answer.", "content": content}
    if path in _FEEDS:
        content = {"text/event-stream": {"schema": {"type": "string"}}}
        responses["200"] = {"description": "The events.", "content": content}
    responses["default"] = {
        "description": "Anything that is no success.",
        "content": {"application/json": {"schema": _ref("ErrorEnvelope")}},
    }


def _ref(name: str) -> dict[str, str]:
    return {"$ref": REF.format(name)}
