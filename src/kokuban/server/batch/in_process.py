"""Sends a request to an ASGI application in this process."""

import asyncio
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Scope


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole answer."""

    status: int
    headers: Headers
    body: bytes


async def post(app: ASGIApp, path: str, body: bytes) -> Reply:
    """The answer to a JSON body. Cancelling the task cancels the request."""
    inbox: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
    outbox: list[Message] = []

    async def receive() -> Message:
        if inbox:
            return inbox.pop()
        await asyncio.Event().wait()  # This client never leaves; its task may be cancelled.
        raise AssertionError("nobody sets it")

    async def send(message: Message) -> None:
        outbox.append(message)

    await app(_scope(path, len(body)), receive, send)
    start, *rest = outbox
    return Reply(
        status=start["status"],
        headers=Headers(raw=start["headers"]),
        body=b"".join(message.get("body", b"") for message in rest),
    )


def _scope(path: str, num_bytes: int) -> Scope:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [
            (b"host", b"localhost"),
            (b"content-type", b"application/json"),
            (b"content-length", str(num_bytes).encode()),
        ],
        "client": ("127.0.0.1", 0),
        "server": ("localhost", 80),
    }
