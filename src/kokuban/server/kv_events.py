"""GET /v1/kv_events: what the prefix cache stores and loses, for routers, as server-sent events.

For who runs the server. Token ids are prompt text: with several API keys, each of them a tenant of
its own, nobody may read the others' text, so that the ids are left out there. The keys of blocks
say nothing without the installation's secret.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
from msgspec import UNSET, Struct, UnsetType
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from kokuban.core.errors import RequestError, ShuttingDown
from kokuban.kvcache.events import Cursor, KvEvent, Replay
from kokuban.server.life import Drain
from kokuban.server.routes import Router
from kokuban.server.scopes import KeyScope
from kokuban.server.serving import serving_of

HEARTBEAT = b": nothing new\n\n"

router = Router(KeyScope.ADMIN)


class Change(Struct, frozen=True):
    """The data of a `stored`, `removed` or `cleared` event."""

    tier: str
    group: int | UnsetType = UNSET
    key: str | UnsetType = UNSET
    parent: str | UnsetType | None = UNSET
    num_tokens: int | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET
    block_ids: list[int] | UnsetType = UNSET


class Position(Struct, frozen=True):
    """The data of an `open` or `gap` event."""

    epoch: str
    """Another one is another life of the server: it holds nothing of what the one before held."""

    sequence: int
    """Of the last event before the next one."""

    num_lost: int | UnsetType = UNSET


@router.get("/v1/kv_events")
async def kv_events(request: Request) -> Response:
    """Follow the prefix cache, from `?since=` or `Last-Event-ID`, or from now on."""
    serving = serving_of(request)
    if serving.drain.draining:
        raise ShuttingDown("this server is shutting down; try again or use another one")
    replays = serving.model.client.kv_events(_cursor(request))
    first = await anext(replays)
    return EventFeed(
        first,
        replays,
        serving.drain,
        ping_s=serving.settings.ping_s,
        with_tokens=serving.keys.num_tenants == 1 and not serving.keys.may_grow,
    )


def _cursor(request: Request) -> Cursor | None:
    """Where to begin. A client that comes back sends the header, whatever its URL says."""
    for name, text in (
        ("Last-Event-ID", request.headers.get("last-event-id")),
        ("since", request.query_params.get("since")),
    ):
        if text:
            try:
                return Cursor.parse(text)
            except ValueError as error:
                raise RequestError(f"{name}: {error}", param=name) from None
    return None


class EventFeed(Response):
    """Replays as server-sent events. Ends when the client leaves, the server drains or the engine
    ends.

    Args:
        first: the replay that tells where the reader stands.
        replays: those that follow; closed at the end.
        drain: not kept waiting.
        ping_s: a comment is sent after so much time without an event.
        with_tokens: whether token ids are shown.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        first: Replay,
        replays: AsyncGenerator[Replay],
        drain: Drain,
        *,
        ping_s: float,
        with_tokens: bool,
    ) -> None:
        super().__init__(media_type=self.media_type)
        self.headers["cache-control"] = "no-cache"
        self.headers["x-accel-buffering"] = "no"
        del self.headers["content-length"]
        self._first = first
        self._replays = replays
        self._drain = drain
        self._ping_s = ping_s
        self._with_tokens = with_tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        async with aclosing(self._replays):
            feed = asyncio.create_task(self._feed(send))
            ends = [
                asyncio.create_task(self._drain.begun.wait()),
                asyncio.create_task(_disconnected(receive)),
            ]
            try:
                await asyncio.wait([feed, *ends], return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (feed, *ends):
                    task.cancel()
                await asyncio.wait([feed, *ends])
            if not feed.cancelled():
                feed.result()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _feed(self, send: Send) -> None:
        first = self._first
        await self._send((b"" if first.is_gap else _opening(first)) + self._data(first), send)
        while (replay := await self._next(send)) is not None:
            await self._send(self._data(replay), send)

    async def _next(self, send: Send) -> Replay | None:
        """The next replay, with comments while there is none; None at the end."""
        waiting = asyncio.ensure_future(anext(self._replays, None))
        try:
            while not waiting.done():
                done, _ = await asyncio.wait([waiting], timeout=self._ping_s)
                if not done:
                    await self._send(HEARTBEAT, send)
            return waiting.result()
        finally:
            waiting.cancel()
            await asyncio.wait([waiting])

    async def _send(self, data: bytes, send: Send) -> None:
        await send({"type": "http.response.body", "body": data, "more_body": True})

    def _data(self, replay: Replay) -> bytes:
        gap = b""
        if replay.is_gap:
            before = _before(replay)
            gap = _event("gap", before, Position(*before, replay.num_lost))
        epoch = replay.cursor.epoch
        return gap + b"".join(
            _event(event.kind, Cursor(epoch, event.sequence), self._change(event))
            for event in replay.events
        )

    def _change(self, event: KvEvent) -> Change:
        if event.group is None:
            return Change(event.tier)
        place = (event.tier, event.group, event.key.hex())
        block_ids = list(event.block_ids)
        if not event.token_ids:  # Removed, or in a tier that names what the pool has told of.
            return Change(*place, block_ids=block_ids)
        return Change(
            *place,
            event.parent.hex() if event.parent is not None else None,
            len(event.token_ids),
            list(event.token_ids) if self._with_tokens else UNSET,
            block_ids,
        )


def _before(replay: Replay) -> Cursor:
    """The place before the events of a replay: the id of what is said about all of them."""
    return Cursor(replay.cursor.epoch, replay.cursor.sequence - len(replay.events))


def _opening(first: Replay) -> bytes:
    """Tells where the reader stands; its id lets a client come back that has seen nothing else."""
    before = _before(first)
    return _event("open", before, Position(*before))


def _event(kind: str, cursor: Cursor, data: Struct) -> bytes:
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (
        str(cursor).encode(),
        kind.encode(),
        msgspec.json.encode(data),
    )


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
