"""Which shape an error has: that of the API whose path was asked for."""

from starlette.responses import Response
from starlette.types import Scope

from kokuban.server.errors import Failure
from kokuban.server.messages import errors as messages_errors


def error_response(failure: Failure, scope: Scope) -> Response:
    """The answer to a request that failed before any of its answer was sent."""
    if messages_errors.is_ours(scope["path"]):
        state = scope["state"]
        return messages_errors.error_response(failure, state["client_id"] or state["request_id"])
    return failure.response()
