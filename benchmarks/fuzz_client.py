"""Sends requests of the fuzz driver, in process or over a socket, and judges what comes back."""

import asyncio
import contextlib
import json
import re
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.fuzz_cases import Ask, Case
from starlette.applications import Starlette

TIMEOUT_S = 300.0
"""For one request, or between two messages of one that is read slowly. Long, since a busy machine
is no fault of the server; whatever is not answered by then hangs."""

_POLL_S = 0.02
_READING_S = 0.02
_LINGER_S = 0.5
_RUNNING = (b'"status":"in_progress"', b'"status":"queued"')
_ID = re.compile(rb'"id":"([\w\-]+)"')
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")


@dataclass(slots=True)
class Answer:
    """What came back."""

    status: int = 0
    headers: dict[bytes, bytes] = field(default_factory=dict)
    body: bytes = b""


class Client:
    """Sends requests to an application in process."""

    def __init__(self, app: Starlette) -> None:
        self._app = app

    async def send(self, ask: Ask) -> Answer:
        """The answer; empty where the client left before there was one."""
        answer = Answer()
        gone = asyncio.Event()
        pieces = _pieces(ask)
        num_messages = 0

        async def receive() -> dict[str, Any]:
            if pieces:
                piece = pieces.pop(0)
                if not pieces and ask.ends_early:
                    gone.set()
                else:
                    return {"type": "http.request", "body": piece, "more_body": bool(pieces)}
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            nonlocal num_messages
            num_messages += 1
            if ask.leaves_after is not None and num_messages > ask.leaves_after:
                gone.set()
            if message["type"] == "http.response.start":
                answer.status = message["status"]
                answer.headers = dict(message["headers"])
            else:
                answer.body += message.get("body", b"")
            if ask.reads_slowly:
                limit.reschedule(asyncio.get_running_loop().time() + TIMEOUT_S)
                await asyncio.sleep(_READING_S)

        if ask.leaves_after == 0:
            asyncio.get_running_loop().call_later(0.001, gone.set)
        async with asyncio.timeout(TIMEOUT_S) as limit:
            await self._app(_scope(ask), receive, send)
        return answer

    async def follow(self, ask: Ask) -> Answer:
        """The answer; of what is to be polled the first that says that it is over."""
        answer = await self.send(ask)
        async with asyncio.timeout(TIMEOUT_S):
            while ask.polls and any(word in answer.body for word in _RUNNING):
                await asyncio.sleep(_POLL_S)
                answer = await self.send(ask)
        return answer

    async def run(self, case: Case) -> list[tuple[Ask, Answer]]:
        """All requests of a case with their answers."""
        first = await self.follow(case.asks[0])
        answers = [(case.asks[0], first)]
        found = _ID.search(first.body)
        asks = [_named(ask, found[1] if found else b"none") for ask in case.asks[1:]]
        if case.at_once:
            further = await asyncio.gather(*(self.follow(ask) for ask in asks))
            return answers + list(zip(asks, further, strict=True))
        return answers + [(ask, await self.follow(ask)) for ask in asks]


def _pieces(ask: Ask) -> list[bytes]:
    step = max(1, -(-len(ask.body) // ask.pieces))
    found = [ask.body[at : at + step] for at in range(0, len(ask.body), step)]
    return found or [b""]


def _named(ask: Ask, response_id: bytes) -> Ask:
    """The request with the id of the first answer in it."""
    path = ask.path.replace("{id}", response_id.decode())
    return replace(ask, path=path, body=ask.body.replace(b"{id}", response_id))


def _scope(ask: Ask) -> dict[str, Any]:
    fields = {"host": "localhost", "content-type": "application/json"} | dict(ask.headers)
    path = ask.path.encode("utf-8", "replace").decode()
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": ask.method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": ask.query.encode(),
        "headers": [(k.encode(), v.encode("utf-8")) for k, v in fields.items()],
        "client": ("127.0.0.1", 1),
        "server": ("localhost", 80),
    }


async def send_raw(raw: bytes, port: int) -> Answer:
    """Write bytes to a server's socket and read until it closes. Status 0: it said nothing."""
    async with asyncio.timeout(TIMEOUT_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            with contextlib.suppress(ConnectionError):
                writer.write(raw)
                await writer.drain()
            found = b""
            with contextlib.suppress(ConnectionError):
                while piece := await _next(reader, answered=bool(found)):
                    found += piece
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
    statuses = [int(status) for status in _STATUS.findall(found)]
    return Answer(max(statuses, default=0), body=found)


async def _next(reader: asyncio.StreamReader, *, answered: bool) -> bytes:
    """What comes next; b"" when nothing does: a server that has answered may keep the line open."""
    try:
        return await asyncio.wait_for(reader.read(65_536), _LINGER_S if answered else None)
    except TimeoutError:
        return b""


def problem(ask: Ask, answer: Answer) -> str | None:
    """What is wrong with an answer; None: nothing."""
    if ask.leaves_after is not None or ask.ends_early:
        return f"status {answer.status}" if answer.status >= 500 else None
    if not 200 <= answer.status < 500:
        return f"status {answer.status} {answer.body[:300]!r}"
    kind = answer.headers.get(b"content-type", b"")
    if answer.status >= 400:
        return None if ask.method == "HEAD" or _is_envelope(answer.body) else "no envelope"
    if kind.startswith(b"text/event-stream"):
        return _stream_problem(ask, answer.body)
    if kind.startswith(b"application/json") and ask.method != "HEAD":
        json.loads(answer.body)
    return None


def _is_envelope(body: bytes) -> bool:
    found = json.loads(body)
    return set(found["error"]) >= {"message", "type"}


def _stream_problem(ask: Ask, body: bytes) -> str | None:
    events = [event for event in body.split(b"\n\n") if event and not event.startswith(b":")]
    for event in events:
        data = [line[6:] for line in event.split(b"\n") if line.startswith(b"data: ")]
        if len(data) != 1:
            return f"an event without one line of data: {event[:100]!r}"
        if data[0] == b"[DONE]":
            continue
        found = json.loads(data[0])
        if found.get("error") is not None:
            return f"a failed stream: {found['error']}"
    return _end_problem(ask, events[-1] if events else b"")


def _end_problem(ask: Ask, last: bytes) -> str | None:
    if "completions" in ask.path:
        ends = last == b"data: [DONE]"
    elif ask.path == "/v1/messages":
        ends = b'"type":"message_stop"' in last
    elif ask.path.startswith("/v1/responses") and "starting_after" not in ask.query:
        ends = last.startswith((b"event: response.completed", b"event: response.incomplete"))
        ends = ends or last.startswith((b"event: response.cancelled", b"event: response.failed"))
    else:
        return None
    return None if ends else f"a stream without an end, but with {last[-200:]!r}"
