"""The first and the last thing that a request meets: who may come in, and that an answer goes out.

Plain ASGI, so that disconnects reach the routes unchanged. What is behind it is closed: without a
key only the paths answer that are handed in as public, and each route then asks what the key may do
(`access.check_scope`).
"""

import logging
import re
import secrets
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kokuban.core.errors import KokubanError
from kokuban.observe.metrics import ServingMetrics
from kokuban.server.access import check_host, check_origin, given_key, no_key
from kokuban.server.envelopes import error_response
from kokuban.server.errors import CLIENT_CLOSED, HttpError, failure
from kokuban.server.keys import EVERYBODY, Caller, KeyRing
from kokuban.server.quota import Account
from kokuban.server.settings import ServerSettings

MAX_HEADER_BYTES = 32 * 2**10

_CLIENT_ID = re.compile(r"[\w.:\-]{1,128}", re.ASCII)

_log = logging.getLogger(__name__)


class Guard:
    """Checks the Host header and the key, names the request and catches what nobody caught.

    Args:
        app: what comes next.
        settings: host names and origins.
        keys: who may come in.
        public: paths that answer without a key: probes, and a page that holds nothing secret.
        metrics: counts responses.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: ServerSettings,
        keys: KeyRing,
        public: frozenset[str],
        metrics: ServingMetrics,
    ) -> None:
        self._app = app
        self._settings = settings
        self._keys = keys
        self._public = public
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # A WebSocket: there is none here; refuse the handshake.
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = Headers(scope=scope)
        state = scope.setdefault("state", {})
        state["request_id"] = secrets.token_hex(12)
        state["client_id"] = _client_id(headers)
        shown_id = state["client_id"] or state["request_id"]
        started = False

        async def answer(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                _add_headers(message, shown_id, state)
                self._metrics.responded(message["status"])
            await send(message)

        try:
            _check_size(headers)
            check_host(headers, self._settings)
            caller = state["caller"] = self._caller(scope, headers)
            state["tenant"] = caller.tenant if caller else ""
            await self._app(scope, receive, answer)
        except ClientDisconnect:  # While it sent its body: nobody is left to be answered.
            self._metrics.responded(CLIENT_CLOSED)
            _log.info("request %s: the client left while it sent its body", state["request_id"])
        except Exception as error:  # The border: what is no error of ours is a 500.
            if not isinstance(error, KokubanError):
                _log.exception("request %s failed", state["request_id"])
            problem = failure(error)
            if started:
                raise
            await error_response(problem, scope)(scope, receive, answer)

    def _caller(self, scope: Scope, headers: Headers) -> Caller | None:
        """Whose request it is; None where nobody knows and the path does not ask."""
        if self._keys.is_open:
            check_origin(scope["method"], headers, self._settings)
            return EVERYBODY
        caller = self._keys.find(given_key(headers))
        if caller is None and scope["path"] not in self._public:
            raise no_key()
        return caller


def _add_headers(message: Message, shown_id: str, state: dict[str, Any]) -> None:
    """Give the head of an answer what all have."""
    headers = MutableHeaders(scope=message)
    for name in ("x-request-id", "request-id"):  # OpenAI's and Anthropic's.
        headers[name] = shown_id
    headers["x-content-type-options"] = "nosniff"
    account: Account | None = state.get("account")
    if account is not None:
        headers.update(account.headers())
    if warning := state.get("warning"):
        headers["x-kokuban-warning"] = warning


def _check_size(headers: Headers) -> None:
    """The HTTP library's own limit holds only for headers that come in pieces."""
    size = sum(len(name) + len(value) for name, value in headers.raw)
    if size > MAX_HEADER_BYTES:
        raise HttpError(
            431,
            f"the headers have {size} bytes; the limit is {MAX_HEADER_BYTES}",
            code="headers_too_large",
        )


def _client_id(headers: Headers) -> str:
    """The client's X-Request-Id when it is short and plain, else "". Never used as a key."""
    asked = headers.get("x-request-id", "")
    return asked if _CLIENT_ID.fullmatch(asked) else ""
