"""The paths of the Responses API.

    POST   /v1/responses                       answer; whole, as a stream, or in the background
    POST   /v1/responses/input_tokens          what a request's input costs
    GET    /v1/responses/{id}                  a response that is kept; with stream=true its events
    DELETE /v1/responses/{id}                  forget it; ends it if it still runs
    POST   /v1/responses/{id}/cancel           end it, if it runs in the background
    GET    /v1/responses/{id}/input_items      what it answered, in pages

A response belongs to the API key that asked for it; to others it is unknown.
"""

import re
from collections.abc import Sequence

from msgspec import Raw
from starlette.requests import Request
from starlette.responses import Response

from kokuban.core.errors import RequestError
from kokuban.server.answer import respond
from kokuban.server.body import MAX_NAMED, read_body
from kokuban.server.errors import HttpError, retold
from kokuban.server.openai_responses import encode
from kokuban.server.responses.background import Background, Kept
from kokuban.server.responses.bodies import InputTokens, ItemList, ResponseDeleted, encode_given
from kokuban.server.responses.form import ResponseForm
from kokuban.server.responses.items import as_listed
from kokuban.server.responses.prepare import Ask, in_our_words, prepare
from kokuban.server.responses.replay import replay
from kokuban.server.responses.request import ResponseRequest
from kokuban.server.responses.store import Entry, ResponseStore
from kokuban.server.routes import Router
from kokuban.server.scopes import KeyScope
from kokuban.server.serving import Serving, serving_of
from kokuban.server.settings import ServerSettings
from kokuban.server.turn import begin_turn, count_prompt

MAX_PAGE = 100
DEFAULT_PAGE = 20

_PLAIN = re.compile(r"[\w.\-]{1,64}", re.ASCII)

router = Router(KeyScope.INFER)


def new_kept(serving: Serving) -> Kept:
    """An empty store, and nothing in the background."""
    settings = serving.settings
    store = ResponseStore(settings.response_store_bytes, settings.response_ttl_s, serving.clock)
    return Kept(store, Background(store, serving.drain))


@router.post("/v1/responses", queues=True)
async def create_response(request: Request) -> Response:
    """Answer a text or a list of items, going on from an earlier response if one is named."""
    serving, kept = serving_of(request), _kept(request)
    ask = await _ask(request)
    body, tenant = ask.body, request.state.tenant
    if body.background:
        _check_background(kept)
    try:
        turn = await begin_turn(serving, request, ask.chat, ask.num_bytes, api="responses")
    except RequestError as error:
        raise in_our_words(error) from None
    form = ResponseForm(serving, ask, turn.record, kept.store, tenant)
    deltas = retold(turn.deltas, in_our_words)
    if not body.background:
        return respond(serving, deltas, form, turn.record, stream=bool(body.stream))
    run = await kept.background.start(
        form,
        deltas,
        turn.record,
        tenant,
        place=request.state.place,
        keeps_events=bool(body.stream),
    )
    if body.stream and run.entry.log is not None:
        return replay(run.entry.log, 0, ping_s=serving.settings.ping_s)
    return _json(run.entry.body())


@router.post("/v1/responses/input_tokens")
async def count_input_tokens(request: Request) -> Response:
    """Tokens of the input that the same request to /v1/responses would have. What would be refused
    there is refused here."""
    ask = await _ask(request)
    serving = serving_of(request)
    try:
        num_tokens = await count_prompt(serving, ask.chat, ask.num_bytes)
    except RequestError as error:
        raise in_our_words(error) from None
    return _json(encode(InputTokens(input_tokens=num_tokens)))


@router.get("/v1/responses/{response_id}")
async def get_response(request: Request, response_id: str) -> Response:
    """A response as it is now; with stream=true the events of one that began in the background."""
    entry = _found(request, response_id)
    if not _flag(request, "stream"):
        return _json(entry.body())
    position = _number(request, "starting_after", default=-1, least=-1) + 1
    if entry.log is None:
        raise RequestError(
            "only a response that was created with background and stream has a stream to be "
            "resumed; ask for it without stream",
            param="stream",
        )
    return replay(entry.log, position, ping_s=serving_of(request).settings.ping_s)


@router.delete("/v1/responses/{response_id}")
async def delete_response(request: Request, response_id: str) -> Response:
    """Forget a response. Conversations that went on from it keep what they have of it."""
    entry, kept = _found(request, response_id), _kept(request)
    if (run := kept.background.find(entry)) is not None:
        await run.cancel()
    kept.store.delete(entry)
    return _json(encode(ResponseDeleted(id=response_id)))


@router.post("/v1/responses/{response_id}/cancel", frees=True)
async def cancel_response(request: Request, response_id: str) -> Response:
    """End a response in the background; what it had said stays. One that has ended stays so."""
    entry = _found(request, response_id)
    if not entry.is_background:
        raise RequestError(
            "Cannot cancel a synchronous response: only those with background can be; close the "
            "connection instead",
            param="response_id",
        )
    if (run := _kept(request).background.find(entry)) is not None:
        await run.cancel()
    return _json(entry.body())


@router.get("/v1/responses/{response_id}/input_items")
async def list_input_items(request: Request, response_id: str) -> Response:
    """The items that a response answered, latest first unless order=asc."""
    entry = _found(request, response_id)
    limit = _number(request, "limit", default=DEFAULT_PAGE, least=1, most=MAX_PAGE)
    order = request.query_params.get("order", "desc")
    if order not in ("asc", "desc"):
        raise RequestError(f"order={order[:32]!r} is neither asc nor desc", param="order")
    items = entry.node.input_items()
    if order == "desc":
        items.reverse()
    if (after := request.query_params.get("after")) is not None:
        places = [place for place, item in enumerate(items) if item["id"] == after]
        if not places:
            raise RequestError(f"after={after[:64]!r} is none of the items", param="after")
        items = items[places[0] + 1 :]
    page = items[:limit]
    listed = ItemList(
        data=[Raw(encode_given(as_listed(item))) for item in page],
        first_id=page[0]["id"] if page else "",
        last_id=page[-1]["id"] if page else "",
        has_more=len(items) > limit,
    )
    return _json(encode(listed))


async def _ask(request: Request) -> Ask:
    serving = serving_of(request)
    body, num_bytes = await read_body(request, serving.settings, ResponseRequest)
    ask = await prepare(serving, _kept(request).store, request.state.tenant, body, num_bytes)
    if ask.toolbox.left_out:
        _tell_left_out(request, serving.settings, ask.toolbox.left_out)
    return ask


def _tell_left_out(request: Request, settings: ServerSettings, kinds: Sequence[str]) -> None:
    """Name the tools that the model is not told about in the header `x-kokuban-warning`.

    Raises:
        RequestError: the operator wants everything refused that is not served.
    """
    names = sorted({kind if _PLAIN.fullmatch(kind) else "?" for kind in kinds})
    told = f"tools of these types are not served: {', '.join(names[:MAX_NAMED])}"
    if settings.strict:
        raise RequestError(f"{told}; leave them out", param="tools", code="unsupported_tool")
    before: str | None = getattr(request.state, "warning", None)
    request.state.warning = f"{before}; {told}" if before else told


def _kept(request: Request) -> Kept:
    kept: Kept = request.app.state.responses
    return kept


def _check_background(kept: Kept) -> None:
    """Raises what stands against a run that begins now."""
    if not kept.store.keeps_any:
        raise RequestError(
            "this server keeps no responses, so that nothing can run in the background; start it "
            "with a larger --response-store",
            param="background",
        )
    kept.background.check()


def _found(request: Request, response_id: str) -> Entry:
    entry = _kept(request).store.find(request.state.tenant, response_id)
    if entry is None:
        raise HttpError(
            404,
            f"Response with id {response_id[:64]!r} not found. It was not stored, or it is kept no "
            f"longer.",
            code="response_not_found",
        )
    return entry


def _flag(request: Request, name: str) -> bool:
    text = request.query_params.get(name, "false").lower()
    if text not in ("true", "false", "1", "0"):
        raise RequestError(f"{name}={text[:32]!r} is neither true nor false", param=name)
    return text in ("true", "1")


def _number(request: Request, name: str, *, default: int, least: int, most: int = 2**53) -> int:
    text = request.query_params.get(name)
    if text is None:
        return default
    is_number = text.removeprefix("-").isdecimal() and text.isascii() and len(text) < 18
    if not is_number or not least <= int(text) <= most:
        raise RequestError(f"{name}={text[:32]!r} is no integer from {least} to {most}", param=name)
    return int(text)


def _json(data: bytes) -> Response:
    return Response(data, media_type="application/json")
