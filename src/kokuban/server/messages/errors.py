"""Errors as Anthropic's clients read them: by a type, not by a code."""

import msgspec
from starlette.responses import Response

from kokuban.server.errors import Failure

PREFIX = "/v1/messages"

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


TOO_LONG = "prompt is too long"
"""Agents look for these words, and shorten their conversation when they find them."""


class ErrorDetail(msgspec.Struct, frozen=True):
    type: str
    message: str


class MessagesError(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="error"):
    """Also the data of the event that ends a stream which failed."""

    error: ErrorDetail
    request_id: str


def is_ours(path: str) -> bool:
    """Whether a path belongs to this API, also where there is nothing at it."""
    return path == PREFIX or path.startswith(f"{PREFIX}/")


def envelope(failure: Failure, request_id: str) -> MessagesError:
    """What a client of this API is told about an error."""
    kind = _TYPES.get(failure.status)
    if kind is None:
        kind = "invalid_request_error" if failure.status < 500 else "api_error"
    message = failure.body.message
    if failure.body.code == "context_length_exceeded":
        message = f"{TOO_LONG}: {message}"
    return MessagesError(error=ErrorDetail(kind, message), request_id=request_id)


def error_response(failure: Failure, request_id: str) -> Response:
    """A failure before any of the answer was sent."""
    return Response(
        msgspec.json.encode(envelope(failure, request_id)),
        failure.status,
        headers=failure.headers,
        media_type="application/json",
    )
