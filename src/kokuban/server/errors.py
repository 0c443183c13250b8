"""From errors to HTTP: one table, one envelope.

Every answer that is no success has the body `{"error": {"message", "type", "param", "code"}}`, all
four always present, as OpenAI's clients expect. What is not in the table is a bug: the client gets
a 500 without its text, the log gets the traceback.
"""

import json
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import Response

from kokuban.core.errors import (
    EngineRestarting,
    KokubanError,
    Overloaded,
    RequestError,
    ShuttingDown,
    StepFailed,
    UnknownModel,
)

if TYPE_CHECKING:
    from pydantic import ValidationError

Item = TypeVar("Item")

CLIENT_CLOSED = 499
"""Not sent to anybody: the status in the log and the metrics when the client left first."""


class HttpError(KokubanError):
    """A request that fails as HTTP, before anything of it reaches the engine.

    Args:
        status: the status code.
        message: what was wrong and the way out.
        code: a stable word for programs.
        headers: response headers beside the usual ones.
    """

    def __init__(
        self, status: int, message: str, *, code: str, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers = headers or {}


class Rule(NamedTuple):
    """How a class of errors looks from outside."""

    error: type[KokubanError]
    status: int
    type: str
    code: str
    """Where the error has none of its own."""


RULES = (
    Rule(UnknownModel, 404, "invalid_request_error", "model_not_found"),
    Rule(RequestError, 400, "invalid_request_error", "invalid_value"),
    Rule(ShuttingDown, 503, "service_unavailable_error", "shutting_down"),
    Rule(EngineRestarting, 503, "service_unavailable_error", "engine_restarting"),
    Rule(Overloaded, 429, "rate_limit_error", "queue_full"),
    Rule(StepFailed, 500, "server_error", "engine_error"),
)
"""The first rule whose class fits wins: a class stands before the class it is derived from."""

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}


class ErrorBody(msgspec.Struct):
    """The inside of the envelope."""

    message: str
    type: str
    param: str | None
    code: str | None


class Failure(NamedTuple):
    """An error, ready to be sent: as a response, or as an event of a stream that has begun."""

    status: int
    body: ErrorBody
    headers: dict[str, str]

    def encode(self) -> bytes:
        """The envelope as JSON, on one line."""
        return msgspec.json.encode({"error": self.body})

    def response(self) -> Response:
        return Response(
            self.encode(), self.status, headers=self.headers, media_type="application/json"
        )


def failure(error: Exception) -> Failure:
    """What the client is told about an error."""
    if isinstance(error, HttpError):
        kind = _TYPES.get(error.status, "invalid_request_error")
        return Failure(
            error.status, ErrorBody(str(error), kind, None, error.code), dict(error.headers)
        )
    if isinstance(error, HTTPException):
        return _from_starlette(error)
    for rule in RULES:
        if isinstance(error, rule.error):
            param = error.param if isinstance(error, RequestError) else None
            code = error.code if isinstance(error, RequestError) else None
            headers = (
                {"retry-after": str(error.retry_after_s)} if isinstance(error, Overloaded) else {}
            )
            body = ErrorBody(str(error), rule.type, param, code or rule.code)
            return Failure(rule.status, body, headers)
    message = "this is a fault of the server; its log has the details under the x-request-id"
    return Failure(500, ErrorBody(message, "server_error", None, "internal_error"), {})


def _from_starlette(error: HTTPException) -> Failure:
    texts = {
        404: ("there is nothing at this path; /openapi.json lists what there is", "not_found"),
        405: ("this path does not take this method", "method_not_allowed"),
    }
    message, code = texts.get(error.status_code, (str(error.detail), "http_error"))
    kind = "invalid_request_error" if error.status_code < 500 else "server_error"
    return Failure(
        error.status_code, ErrorBody(message, kind, None, code), dict(error.headers or {})
    )


async def retold(
    items: AsyncGenerator[Item], tell: Callable[[RequestError], RequestError]
) -> AsyncGenerator[Item]:
    """The same items; an error of theirs is told in the words of who asked for them."""
    async with aclosing(items):
        try:
            async for item in items:
                yield item
        except RequestError as error:
            raise tell(error) from None


def from_validation(error: "ValidationError") -> RequestError:
    """The first problem that pydantic found, with the path of the field at fault."""
    problems = error.errors(include_url=False, include_context=False)
    first = problems[0]["loc"][:1]
    candidates = [found for found in problems if found["loc"][:1] == first]
    problem = max(candidates, key=lambda found: len(found["loc"]))  # The deepest says most.
    param = _path(problem["loc"])
    if problem["type"] == "json_invalid":
        return RequestError(
            f"the body is not JSON: {problem['msg'].removeprefix('Invalid JSON: ')}",
            code="invalid_json",
        )
    text = problem["msg"].removeprefix("Value error, ")
    text = text[:1].lower() + text[1:]
    where = f"{param}{_shown(problem['input'])}: " if param else "the body: "
    return RequestError(where + text, param=param, code="invalid_value")


def _shown(value: object) -> str:
    """A number as it was sent; texts may be somebody's words and are not repeated."""
    return f"={json.dumps(value)[:40]}" if isinstance(value, int | float) else ""


_FIELD = re.compile(r"[a-z_][a-z0-9_]*")
_BRANCHES = frozenset({"str", "int", "float", "bool", "dict", "list", "text"})


def _path(location: Sequence[Any]) -> str | None:
    """`("messages", 0, "content", "str")` as `messages[0].content`.

    Names of a union's branches, which pydantic puts into the path, are left out.
    """
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif not path:
            path = str(part)
        elif _FIELD.fullmatch(part) and part not in _BRANCHES:
            path += f".{part}"
    return path or None
