"""Reads the body of a request: JSON only, within a size and a time."""

import asyncio
import re
from collections.abc import Sequence
from typing import TypeVar

from starlette.requests import Request

from kokuban.core.errors import RequestError
from kokuban.server.cache_models import Strict
from kokuban.server.errors import HttpError
from kokuban.server.openai_models import parse
from kokuban.server.parameters import known_names, unknown_fields
from kokuban.server.settings import ServerSettings
from kokuban.server.work import INLINE_JSON_BYTES, check_values, off_loop

Body = TypeVar("Body", bound=Strict)

MAX_DISCARDED_BYTES = 64 * 2**20
"""Of a body that is too large: read and dropped, so that the client can read why, up to here."""

MAX_LENGTH_DIGITS = 20
"""Of a Content-Length that are read; the HTTP library takes no more."""

MAX_NAMED = 8
"""Unknown fields that a header names."""

_PLAIN = re.compile(r"[\w.\-]{1,64}", re.ASCII)


async def read_json(request: Request, settings: ServerSettings) -> bytes:
    """The raw body.

    Only `application/json` is taken: what a web page may send elsewhere without asking has another
    type.

    Raises:
        HttpError: 415 for another type, 413 for too many bytes, 408 for too slow a client.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise HttpError(
            415,
            f"the content type is {repr(kind[:64]) if kind else 'missing'}; send JSON with the "
            f"header 'Content-Type: application/json'",
            code="unsupported_media_type",
        )
    try:
        async with asyncio.timeout(settings.body_timeout_s):
            return await _read(request, settings.max_body_bytes)
    except TimeoutError:
        raise HttpError(
            408,
            f"the body did not arrive within {settings.body_timeout_s:g} seconds",
            code="request_timeout",
        ) from None


async def parse_body(model: type[Body], raw: bytes) -> Body:
    """The body as a model; a large one is parsed in a worker thread.

    Raises:
        HttpError: 413 for too many values.
        RequestError: see `parse`.
    """

    def work() -> Body:
        check_values(raw)
        return parse(model, raw)

    return await off_loop(work, len(raw), INLINE_JSON_BYTES)


async def read_body(
    request: Request, settings: ServerSettings, model: type[Body]
) -> tuple[Body, int]:
    """The body of a route that generates, and its length in bytes.

    Raises:
        HttpError, RequestError: see `read_json`, `parse_body` and `check_unknown`.
    """
    raw = await read_json(request, settings)
    body = await parse_body(model, raw)
    check_unknown(request, settings, body)
    return body, len(raw)


def check_unknown(request: Request, settings: ServerSettings, body: Strict) -> None:
    """Name the fields that nobody here knows in a header of the answer, `x-kokuban-warning`.

    Raises:
        RequestError: there is one, and the operator wants them refused.
    """
    names = list(unknown_fields(body, body.apis))
    if not names:
        return
    if settings.strict:
        raise _unknown(names[0], [*type(body).model_fields, *known_names(body.apis)])
    shown = [name if _PLAIN.fullmatch(name) else "?" for name in names[:MAX_NAMED]]
    if len(names) > MAX_NAMED:
        shown.append(f"and {len(names) - MAX_NAMED} more")
    request.state.warning = "unknown fields: " + ", ".join(shown)


def _unknown(name: str, known: Sequence[str]) -> RequestError:
    from difflib import get_close_matches  # Slow to import, and rarely asked for.

    shown = name[:64]
    close = get_close_matches(shown, known, n=1)
    guess = f"did you mean {close[0]!r}?" if close else "leave it out"
    param = shown if _PLAIN.fullmatch(shown) else None
    return RequestError(
        f"the field {shown!r} is not known; {guess}", param=param, code="unknown_field"
    )


async def _read(request: Request, limit: int) -> bytes:
    announced = request.headers.get("content-length", "")
    # Python makes no number of thousands of digits, and so many are too large anyway.
    total = int(announced[:MAX_LENGTH_DIGITS]) if announced.isdecimal() else 0
    most = max(limit, MAX_DISCARDED_BYTES)
    if total > most:
        raise _too_large(limit)
    pieces: list[bytes] = []
    received = 0
    async for piece in request.stream():
        received += len(piece)
        if received > most:
            break
        if received <= limit:
            pieces.append(piece)
        else:
            pieces.clear()
    if received > limit:
        raise _too_large(limit)
    return b"".join(pieces)


def _too_large(limit: int) -> HttpError:
    return HttpError(
        413,
        f"the body is larger than {limit} bytes; send less, or start the server with a larger "
        f"--max-body-size",
        code="body_too_large",
    )
