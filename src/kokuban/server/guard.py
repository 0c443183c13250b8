"""The first and the last thing that a request meets: who may come in, and that an answer goes out.

Plain ASGI, so that disconnects reach the routes unchanged. Routes are closed unless they stand in
`PUBLIC`: a new route needs the key until somebody decides otherwise.
"""

import hmac
import logging
import re
import secrets
from hashlib import blake2b

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kokuban.core.errors import KokubanError
from kokuban.observe.metrics import ServingMetrics
from kokuban.server.envelopes import error_response
from kokuban.server.errors import CLIENT_CLOSED, HttpError, failure
from kokuban.server.settings import ServerSettings

PUBLIC = frozenset(
    {"/", "/health", "/ready", "/favicon.ico"}
    | {f"/static/{name}" for name in ("page.css", "page.js", "icon.svg")}
)
"""Paths that answer without a key: probes, and a page that holds nothing secret."""

MAX_HEADER_BYTES = 32 * 2**10

_CLIENT_ID = re.compile(r"[\w.:\-]{1,128}", re.ASCII)

_log = logging.getLogger(__name__)


class Guard:
    """Checks the Host header and the key, names the request and catches what nobody caught.

    Args:
        app: what comes next.
        settings: keys and host names.
        metrics: counts responses.
    """

    def __init__(self, app: ASGIApp, settings: ServerSettings, metrics: ServingMetrics) -> None:
        self._app = app
        self._settings = settings
        self._metrics = metrics
        self._keys = [key.encode() for key in settings.api_keys]
        self._tenants = [tenant_of(key) for key in self._keys]

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
                _label(message, shown_id, state.get("warning"))
                self._metrics.responded(message["status"])
            await send(message)

        try:
            _check_size(headers)
            self._check_host(headers)
            state["tenant"] = self._tenant(scope["path"], headers)
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

    def _check_host(self, headers: Headers) -> None:
        host = headers.get("host", "")
        if not self._settings.allows_host(host):
            raise HttpError(
                403,
                f"the Host header {host[:64]!r} names another server; start this one with "
                f"--allowed-host NAME if it is meant to be called so",
                code="host_not_allowed",
            )

    def _tenant(self, path: str, headers: Headers) -> str:
        """Whose request it is: a word for each key, and one for everybody where there is none."""
        if not self._keys or path in PUBLIC:
            return ""
        given = _given_key(headers).encode("latin-1", "replace")
        # Every key is compared, so that time does not tell how many were tried.
        matches = [hmac.compare_digest(given, known) for known in self._keys]
        if not any(matches):
            raise HttpError(
                401,
                "this server wants an API key in the header 'Authorization: Bearer KEY', or in "
                "'x-api-key: KEY'",
                code="invalid_api_key",
                headers={"www-authenticate": "Bearer"},
            )
        return self._tenants[matches.index(True)]


def _given_key(headers: Headers) -> str:
    """The key as OpenAI's clients send it, else as Anthropic's do; "", which is no key: neither."""
    found = headers.getlist("authorization")
    if not found:
        keys = headers.getlist("x-api-key")
        return keys[0] if len(keys) == 1 else ""
    scheme, _, key = found[0].partition(" ") if len(found) == 1 else ("", "", "")
    return key if scheme.lower() == "bearer" else ""


def tenant_of(key: bytes) -> str:
    """The tenant that an API key stands for, whatever other keys there are.

    KV on disk carries its tenant's name over restarts, and the operator may reorder the keys.
    """
    return f"key-{blake2b(key, digest_size=16).hexdigest()}"


def _label(message: Message, shown_id: str, warning: str | None) -> None:
    """Put the headers on the start of an answer that every answer has."""
    shown = MutableHeaders(scope=message)
    for name in ("x-request-id", "request-id"):  # OpenAI's and Anthropic's.
        shown[name] = shown_id
    if warning is not None:
        shown["x-kokuban-warning"] = warning


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
