"""What the OpenAPI document says of each route: bodies, answers, events of streams, statuses.

Keys are a path, or a method and a path where its methods differ.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from pydantic import BaseModel

from kokuban.server import embedding_models, explain, kv_events, openai_models, openai_responses
from kokuban.server import sessions as session_routes
from kokuban.server.messages import answers as messages
from kokuban.server.messages import errors as messages_errors
from kokuban.server.messages import models as messages_models
from kokuban.server.parameters_served import MAX_SESSION_LENGTH
from kokuban.server.responses import bodies as responses
from kokuban.server.responses import events
from kokuban.server.responses.request import ResponseRequest
from kokuban.server.scopes import KeyScope

BODIES: Mapping[str, tuple[type[BaseModel], ...]] = {
    "/v1/chat/completions": (openai_models.ChatRequest,),
    "/v1/completions": (openai_models.CompletionRequest,),
    "/v1/responses": (ResponseRequest,),
    "/v1/responses/input_tokens": (ResponseRequest,),
    "/v1/messages": (messages_models.MessagesRequest,),
    "/v1/messages/count_tokens": (messages_models.CountRequest,),
    "/v1/embeddings": (embedding_models.EmbeddingRequest,),
    "/apply-template": (openai_models.TemplateRequest,),
    "/tokenize": (
        openai_models.TokenizeText,
        openai_models.TokenizeChat,
        openai_models.TokenizeContent,
    ),
    "/detokenize": (openai_models.DetokenizeRequest,),
    "/v1/sessions/{session}/pause": (session_routes.PauseRequest,),
}

ANSWERS: Mapping[str, type[msgspec.Struct]] = {
    "/v1/chat/completions": openai_responses.ChatCompletion,
    "/v1/completions": openai_responses.Completion,
    "/v1/responses": responses.ResponseBody,
    "/v1/responses/input_tokens": responses.InputTokens,
    "/v1/responses/{response_id}": responses.ResponseBody,
    "delete /v1/responses/{response_id}": responses.ResponseDeleted,
    "/v1/responses/{response_id}/cancel": responses.ResponseBody,
    "/v1/responses/{response_id}/input_items": responses.ItemList,
    "/v1/messages": messages.MessageAnswer,
    "/v1/messages/count_tokens": messages.TokenCount,
    "/v1/embeddings": embedding_models.EmbeddingList,
    "/v1/models": openai_responses.ModelList,
    "/v1/models/{model}": openai_responses.ModelCard,
    "/apply-template": openai_responses.RenderedPrompt,
    "/tokenize": openai_responses.Tokens,
    "/detokenize": openai_responses.Text,
    "/v1/explain/{request_id}": explain.Explanation,
    "/v1/sessions/{session}/pause": session_routes.SessionBody,
    "/v1/sessions/{session}/resume": session_routes.SessionBody,
    "/v1/sessions/{session}": session_routes.SessionBody,
    "delete /v1/sessions/{session}": session_routes.SessionDeleted,
}


def _object(**properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "required": [*properties], "properties": properties}


SMALL_ANSWERS: Mapping[str, dict[str, Any]] = {
    "/health": _object(status={"const": "ok"}),
    "/ready": _object(status={"const": "ready"}, model={"type": "string"}),
    "/version": _object(version={"type": "string"}),
    "/stats": _object(
        model={"type": "string"},
        alive={"type": "boolean"},
        draining={"type": "boolean"},
        running={"type": "integer"},
        waiting={"type": "integer"},
    ),
    "/reset_prefix_cache": _object(forgotten_blocks={"type": "integer"}),
}
"""Answers that have no struct of their own."""

TEXTS = frozenset({"/metrics"})
"""Answers that are plain text."""


def _subclasses(base: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    """The classes below one that have none below them."""
    for found in base.__subclasses__():
        if found.__subclasses__():
            yield from _subclasses(found)
        else:
            yield found


EVENTS: Mapping[str, tuple[type[msgspec.Struct], ...]] = {
    "post /v1/chat/completions": (openai_responses.ChatChunk,),
    "post /v1/completions": (openai_responses.Completion,),
    "post /v1/messages": (
        messages.MessageStart, messages.BlockStart, messages.BlockDelta, messages.BlockStop,
        messages.MessageDelta, messages.MessageStop, messages.Ping, messages_errors.MessagesError,
    ),
    "post /v1/responses": tuple(_subclasses(events.Event)),
    "get /v1/responses/{response_id}": tuple(_subclasses(events.Event)),
    "get /v1/kv_events": (kv_events.Change, kv_events.Position),
}  # fmt: skip
"""The data of the events of answers that may be streams. As OpenAI does in its document, the schema
of a stream is that of one event's data."""

ENDED_BY_ENVELOPE = frozenset({"post /v1/chat/completions", "post /v1/completions"})
"""Streams that fail with the envelope of errors; the others have an event for it."""

FEEDS = frozenset({"get /v1/kv_events"})
"""Streams that are never anything else."""

OF_RESPONSE: tuple[type[msgspec.Struct], ...] = tuple(
    found for found in _subclasses(events.Event) if "response" in found.__struct_fields__
)
"""Events whose field `response`, ready JSON, is a `ResponseBody`."""

QUERIES: Mapping[str, Mapping[str, dict[str, Any]]] = {
    "get /v1/responses/{response_id}": {
        "stream": {"type": "boolean"},
        "starting_after": {"type": "integer", "minimum": -1, "maximum": 2**53},
    },
    "get /v1/responses/{response_id}/input_items": {
        "limit": {"type": "integer", "minimum": 1, "maximum": 100},
        "order": {"enum": ["asc", "desc"]},
        "after": {"type": "string"},
    },
    "get /v1/kv_events": {"since": {"type": "string"}},
}
"""What may stand behind a path, with its schema."""

_SESSION = {"type": "string", "minLength": 1, "maxLength": MAX_SESSION_LENGTH}
PATH_SCHEMAS: Mapping[str, dict[str, Any]] = {"session": _SESSION}
"""Of what stands in a path, where it is not any text."""

_WORDS = {
    400: "Something in the request is wrong or cannot be served; `param` names the field.",
    401: "No API key, or one that is not known.",
    403: "The key may not do this, or the request comes from where it must not.",
    404: "There is no model, response, session or request of this name.",
    408: "The body did not arrive in time.",
    413: "The body is larger than this server takes.",
    415: "The body is not JSON by its content type.",
    429: "Too many requests wait, or too many came; `Retry-After` says when to come back.",
    431: "The headers are too large.",
    500: "A fault of the server; its log has the details under the `X-Request-Id`.",
    503: "The server shuts down, or its engine is being started again.",
}


def statuses(key: str, scope: KeyScope, *, in_path: bool) -> Iterator[tuple[int, str]]:
    """The statuses that are no success, with what they mean.

    Args:
        key: method and path.
        scope: what the route wants of a caller.
        in_path: whether its path has parameters.
    """
    path = key.partition(" ")[2]
    has_body = path in BODIES
    given = {403, 431, 500, 503}
    if has_body:
        given |= {400, 408, 413, 415}
    if scope is not KeyScope.PUBLIC:
        given |= {401, 429}
    if has_body or in_path:
        given |= {400, 404}
    if key in QUERIES:
        given.add(400)
    for status in sorted(given):
        yield status, _WORDS[status]


def structs() -> list[Any]:
    """Every struct that the document names."""
    found = [*ANSWERS.values(), messages_errors.MessagesError]
    for kinds in EVENTS.values():
        found += kinds
    return list(dict.fromkeys(found))
