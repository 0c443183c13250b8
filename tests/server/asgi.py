"""Talks to the application in process."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from starlette.applications import Starlette
from tests.server.fakes import Served

from kokuban.server.app import FIRST_MODULES, create_app
from kokuban.server.faces import MODULES
from kokuban.server.settings import ServerSettings

Json = dict[str, Any]

ALL_MODULES = (*FIRST_MODULES, *MODULES)


def make_app(model: Served, **settings: Any) -> Starlette:
    """The application around a fake engine, with all routes; settings as in `ServerSettings`."""
    app = create_app(model, ServerSettings(**settings))
    app.state.later.load()
    return app


def client_of(app: Starlette, **options: Any) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=app)
    return httpx.AsyncClient(transport=transport, base_url="http://localhost", **options)


@asynccontextmanager
async def client(
    model: Served, headers: dict[str, str] | None = None, **settings: Any
) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(make_app(model, **settings), headers=headers) as http:
        yield http


async def chat(model: Served, content: str = "p", **fields: Any) -> httpx.Response:
    """One chat request with one user message."""
    body = {"model": "m", "messages": [{"role": "user", "content": content}], **fields}
    async with client(model) as http:
        return await http.post("/v1/chat/completions", json=body)


async def complete(model: Served, prompt: Any = "p", **fields: Any) -> httpx.Response:
    """One completion request."""
    async with client(model) as http:
        return await http.post("/v1/completions", json={"model": "m", "prompt": prompt, **fields})


def events_of(response: httpx.Response) -> list[Json]:
    """The JSON of every event; checks the framing and that [DONE] is the last, once."""
    assert response.headers["content-type"].startswith("text/event-stream"), response.text
    return parse_events(response.content)


def parse_events(data: bytes) -> list[Json]:
    *pieces, rest = data.split(b"\n\n")
    assert rest == b""
    assert pieces[-1] == b"data: [DONE]"
    events = []
    for piece in pieces[:-1]:
        if piece.startswith(b": "):
            continue
        assert piece.startswith(b"data: ")
        assert len(piece.decode().splitlines()) == 1
        events.append(json.loads(piece.removeprefix(b"data: ")))
    return events


class Call:
    """One request as a server sees it: the client can leave, and the answer can be watched."""

    def __init__(
        self,
        app: Starlette,
        path: str,
        body: Json,
        *,
        method: str = "POST",
        query: str = "",
        **headers: str,
    ) -> None:
        self._app = app
        raw = json.dumps(body).encode()
        fields = {"host": "localhost", "content-type": "application/json", **headers}
        self._scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": query.encode(),
            "headers": [(k.encode(), v.encode()) for k, v in fields.items()],
            "client": ("127.0.0.1", 1),
            "server": ("localhost", 80),
        }
        self._inbox: asyncio.Queue[Json] = asyncio.Queue()
        self._inbox.put_nowait({"type": "http.request", "body": raw, "more_body": False})
        self.status: int | None = None
        self.data = b""
        self._news = asyncio.Event()
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        await self._app(self._scope, self._inbox.get, self._send)

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self.data += message.get("body", b"")
        self._news.set()

    def leave(self) -> None:
        """Close the connection."""
        self._inbox.put_nowait({"type": "http.disconnect"})

    async def until(self, text: bytes) -> None:
        """Wait until the answer holds this."""
        async with asyncio.timeout(5):
            while text not in self.data:
                self._news.clear()
                await self._news.wait()

    async def end(self) -> None:
        async with asyncio.timeout(5):
            await self.task
