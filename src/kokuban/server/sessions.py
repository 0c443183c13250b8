"""Sessions: conversations that can say that they pause, so that their KV makes room meanwhile.

    POST   /v1/sessions/{session}/pause     {"expected_ms": 30000, "tools": ["search"]}
    POST   /v1/sessions/{session}/resume
    GET    /v1/sessions/{session}
    DELETE /v1/sessions/{session}

A session begins with the first request that names it, by the header X-Session-ID or the field
prompt_cache_key. It belongs to the API key: what another key calls so is another session, and a
session that another key has is unknown.
"""

from typing import Annotated, Literal

from msgspec import Struct
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from kokuban.core.errors import RequestError
from kokuban.core.session import PausePrices, Place, SessionStatus
from kokuban.server.body import parse_body, read_json
from kokuban.server.cache_models import Strict
from kokuban.server.errors import HttpError
from kokuban.server.openai_responses import encode
from kokuban.server.parameters_served import MAX_SESSION_LENGTH, MAX_TOOLS
from kokuban.server.routes import Router
from kokuban.server.scopes import KeyScope
from kokuban.server.serving import Serving, serving_of

HEADER = "X-Session-ID"

MAX_EXPECTED_MS = 24 * 3600 * 1000
MAX_TOOL_LENGTH = 256

router = Router(KeyScope.INFER)


class PauseRequest(Strict):
    """The body of a pause."""

    expected_ms: int | None = Field(None, ge=0, le=MAX_EXPECTED_MS)
    """How long; null: as long as these tools have taken before."""

    tools: list[Annotated[str, Field(min_length=1, max_length=MAX_TOOL_LENGTH)]] | None = Field(
        None, max_length=MAX_TOOLS
    )
    """What runs meanwhile; how long that takes is learned."""


class PricesBody(Struct, frozen=True):
    """What each way would cost, in ms of this machine's work; the cheapest is taken."""

    stay_ms: float
    """What others lose while its blocks stay."""

    move_ms: float | None
    """Down and up again; null where nothing lies below the pool."""

    recompute_ms: float


class SessionBody(Struct, frozen=True, kw_only=True):
    """A session, as it is now."""

    id: str
    object: Literal["kokuban.session"] = "kokuban.session"
    active: bool
    """Whether a request of it waits or runs."""

    paused: bool
    num_tokens: int
    num_blocks: int
    place: Place
    expected_ms: float | None
    """How long the pause is expected to take, from its beginning."""

    prices: PricesBody | None
    message: str
    """The decision, in words."""


class SessionDeleted(Struct, frozen=True, kw_only=True):
    """In the form of OpenAI's deletions."""

    id: str
    object: Literal["kokuban.session.deleted"] = "kokuban.session.deleted"
    deleted: bool = True


@router.post("/v1/sessions/{session:path}/pause", frees=True)
async def pause(request: Request, session: str) -> Response:
    """Say that a session will not go on for a while; tells what was decided."""
    serving = _checked(request, session)
    body = await parse_body(PauseRequest, await read_json(request, serving.settings))
    status = await serving.model.client.pause_session(
        request.state.tenant,
        session,
        expected_s=None if body.expected_ms is None else body.expected_ms / 1e3,
        tools=tuple(body.tools or ()),
    )
    return _answer(status, session)


@router.post("/v1/sessions/{session:path}/resume")
async def resume(request: Request, session: str) -> Response:
    """Bring a paused session back before its time."""
    client = _checked(request, session).model.client
    return _answer(await client.resume_session(request.state.tenant, session), session)


@router.get("/v1/sessions/{session:path}")
async def status(request: Request, session: str) -> Response:
    """What is known of a session."""
    client = _checked(request, session).model.client
    return _answer(await client.session_status(request.state.tenant, session), session)


@router.delete("/v1/sessions/{session:path}")
async def delete(request: Request, session: str) -> Response:
    """Forget a session; its KV is the first to make room."""
    client = _checked(request, session).model.client
    if not await client.delete_session(request.state.tenant, session):
        raise _unknown(session)
    return Response(encode(SessionDeleted(id=session)), media_type="application/json")


def session_of(request: Request, key: str | None) -> str:
    """The session that a generating request belongs to; "" for none.

    Args:
        key: its prompt_cache_key, checked; the header goes before it.

    Raises:
        RequestError: the header is no session's id.
    """
    found = request.headers.getlist(HEADER)
    if not found:
        return key or ""
    if len(found) > 1:
        raise RequestError(f"there are {len(found)} headers {HEADER}; send one", param=HEADER)
    # Header values come as Latin-1, one character for each byte.
    name = found[0].encode("latin-1").decode("utf-8", "replace")
    check_session(name, HEADER)
    return name


def check_session(name: str, param: str) -> None:
    """Raises `RequestError` for what is no session's id."""
    if not 1 <= len(name) <= MAX_SESSION_LENGTH:
        raise RequestError(
            f"{param} has {len(name)} characters; a session's id has 1 to {MAX_SESSION_LENGTH}",
            param=param,
        )
    if not name.isprintable() or "\ufffd" in name:
        raise RequestError(f"{param} holds a character that cannot be printed", param=param)


def _checked(request: Request, session: str) -> Serving:
    serving = serving_of(request)
    check_session(session, "session")
    if not serving.info.prefix_cache:
        raise RequestError(
            "sessions live in the prefix cache, which is off; start the server without "
            "--no-prefix-cache",
            code="no_prefix_cache",
        )
    return serving


def _unknown(session: str) -> HttpError:
    return HttpError(
        404,
        f"there is no session {session!r}; it begins with the first request that names it by the "
        f"header {HEADER} or by prompt_cache_key, and ends when it is deleted or long unused",
        code="session_not_found",
    )


def _answer(status: SessionStatus | None, session: str) -> Response:
    if status is None:
        raise _unknown(session)
    body = SessionBody(
        id=status.id,
        active=status.active,
        paused=status.paused,
        num_tokens=status.num_tokens,
        num_blocks=status.num_blocks,
        place=status.place,
        expected_ms=None if status.expected_s is None else _ms(status.expected_s),
        prices=None if status.prices is None else _prices(status.prices),
        message=_message(status),
    )
    return Response(encode(body), media_type="application/json")


def _prices(prices: PausePrices) -> PricesBody:
    move_ms = None if prices.move_s is None else _ms(prices.move_s)
    return PricesBody(_ms(prices.stay_s), move_ms, _ms(prices.recompute_s))


def _message(status: SessionStatus) -> str:
    """Why its KV is where it is."""
    if not status.paused:
        return "not paused: its KV is kept like any other, the latest longest"
    if status.prices is None:
        return "paused while a request of it runs: decided when that ends"
    prices = _prices(status.prices)
    move = "cannot be done" if prices.move_ms is None else f"costs {prices.move_ms:.1f} ms"
    costs = (
        f"staying costs others {prices.stay_ms:.1f} ms, moving it down and up {move}, computing it "
        f"again costs {prices.recompute_ms:.1f} ms"
    )
    return f"{_DECISIONS[status.place]}: {costs}"


_DECISIONS: dict[Place, str] = {
    "pool": "its KV stays in the pool",
    "below": "its KV goes down, and comes back before the pause is expected to end",
    "dropped": "its KV is given up, and computed again when it is needed",
}


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)
