"""Who may come in: the key of a request, what it may do, and where the request comes from.

A web page can make its reader's browser send requests to this machine. Three things keep it out:
the Host header must name this server (a page that points its own name at this machine sends that
name), bodies must be `application/json` (which a page may not send elsewhere without asking), and
without a key whatever changes something must not come from another origin.
"""

from urllib.parse import urlsplit

from starlette.datastructures import Headers

from kokuban.server.errors import HttpError
from kokuban.server.hosts import plain_name, split_host
from kokuban.server.keys import Caller
from kokuban.server.scopes import KeyScope
from kokuban.server.settings import ServerSettings

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
"""They change nothing, and a page of another origin cannot read their answers."""

_DEFAULT_PORTS = {"http": "80", "https": "443"}


def given_key(headers: Headers) -> str:
    """The key as OpenAI's clients send it, else as Anthropic's do; "", which is no key: neither."""
    found = headers.getlist("authorization")
    if not found:
        keys = headers.getlist("x-api-key")
        return keys[0] if len(keys) == 1 else ""
    scheme, _, key = found[0].partition(" ") if len(found) == 1 else ("", "", "")
    return key if scheme.lower() == "bearer" else ""


def no_key() -> HttpError:
    """What somebody is told whose key is missing or unknown; never which of the two it is."""
    return HttpError(
        401,
        "this server wants an API key in the header 'Authorization: Bearer KEY', or in "
        "'x-api-key: KEY'",
        code="invalid_api_key",
        headers={"www-authenticate": "Bearer"},
    )


def check_scope(caller: Caller | None, wanted: KeyScope) -> None:
    """Raises `HttpError`: 401 without a key, 403 for a key that may not do this."""
    if wanted is KeyScope.PUBLIC:
        return
    if caller is None:
        raise no_key()
    if wanted is KeyScope.ANY or wanted in caller.scopes:
        return
    if not caller.has_key:
        raise HttpError(
            403,
            "this route is closed on a server without keys; start it with --admin-key KEY",
            code="admin_closed",
        )
    may = ", ".join(sorted(caller.scopes))
    raise HttpError(
        403,
        f"this API key may not do that: its scopes are {may}, and this route wants {wanted}",
        code="scope_missing",
        headers={"www-authenticate": f'Bearer error="insufficient_scope", scope="{wanted}"'},
    )


def check_private(settings: ServerSettings, caller: Caller) -> None:
    """Raises `HttpError` where strangers are one tenant, so that all see what one of them sees."""
    if not caller.has_key and not settings.on_loopback:
        raise HttpError(
            403,
            "this route is closed on a server that other machines can reach without a key; start "
            "it with --api-key KEY",
            code="admin_closed",
        )


def check_host(headers: Headers, settings: ServerSettings) -> None:
    """Raises `HttpError` for a Host header that names another server."""
    host = headers.get("host", "")
    if not settings.allows_host(host):
        raise HttpError(
            403,
            f"the Host header {host[:64]!r} names another server; start this one with "
            f"--allowed-host NAME if it is meant to be called so",
            code="host_not_allowed",
        )


def check_origin(method: str, headers: Headers, settings: ServerSettings) -> None:
    """Refuse what a web page of another origin sends without a key and that changes something.

    Raises:
        HttpError: 403.
    """
    if method in SAFE_METHODS:
        return
    origin = headers.get("origin")
    if origin is None:
        # A browser that sends no Origin still tells whether the page is somebody else's.
        is_own = headers.get("sec-fetch-site", "none") in ("none", "same-origin")
    else:
        allowed = settings.cors_origins
        is_own = "*" in allowed or origin in allowed or _is_same(origin, headers.get("host", ""))
    if not is_own:
        raise HttpError(
            403,
            f"a page of {(origin or 'another origin')[:64]!r} may not call this server; start it "
            f"with --cors-origin ORIGIN if it is meant to",
            code="origin_not_allowed",
        )


def _is_same(origin: str, host: str) -> bool:
    """Whether a page of an origin was served by the server that Host names.

    The scheme does not count: a proxy may have taken the TLS away.
    """
    try:
        parts = urlsplit(origin)
        port = str(parts.port or _DEFAULT_PORTS.get(parts.scheme, ""))
    except ValueError:
        return False
    name, _, asked_port = split_host(host)
    return (
        parts.scheme in _DEFAULT_PORTS
        and parts.hostname is not None
        and plain_name(parts.hostname) == plain_name(name)
        and port == (asked_port or _DEFAULT_PORTS[parts.scheme])
    )
