"""A server on a real socket that says what a script says, for clients of the OpenAI API."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

USAGE = {"prompt_tokens": 7, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 5}}
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)


def event(body: Any) -> bytes:
    text = body if isinstance(body, str) else json.dumps(body)
    return f"data: {text}\n\n".encode()


def delta(content: str, finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": content}, "text": content, "finish_reason": finish}
    return event({"choices": [choice]})


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def plain(status: int, body: Any, *, close: bool = False) -> bytes:
    data = json.dumps(body).encode()
    end = "connection: close\r\n" if close else ""
    head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n{end}"
    return f"{head}content-length: {len(data)}\r\n\r\n".encode() + data


WORDS = [delta("a"), delta("b"), delta("c", "length")]
ANSWER = [*WORDS, event({"choices": [], "usage": USAGE}), event("[DONE]")]


@dataclass
class ScriptedServer:
    """Answers by the prompt's first word; see `_answer`."""

    wanted: int = 1
    """Requests that must have come before any with the prompt `together` is answered."""

    bodies: list[dict[str, Any]] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)
    running: int = 0
    most_running: int = 0
    url: str = ""
    _all_here: asyncio.Event = field(default_factory=asyncio.Event)
    _open: set[asyncio.StreamWriter] = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        self._open.add(writer)
        try:
            while not writer.is_closing():
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                size = int(head.lower().partition("content-length:")[2].split()[0])
                body = json.loads(await reader.readexactly(size) or b"{}")
                self.heads.append(head)
                self.bodies.append(body)
                self.running += 1
                self.most_running = max(self.most_running, self.running)
                try:
                    await self._answer(head, _prompt(body), writer)
                finally:
                    self.running -= 1
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._open.discard(writer)
            writer.close()

    def close(self) -> None:
        for writer in list(self._open):
            writer.close()

    async def _answer(self, head: str, prompt: str, writer: asyncio.StreamWriter) -> None:
        if head.startswith("GET /v1/models "):
            writer.write(plain(200, {"data": [{"id": "first"}, {"id": "second"}]}))
        elif prompt == "busy":
            writer.write(plain(429, {"error": {"message": "come back later"}}))
        elif prompt == "broken":
            writer.write(plain(500, {"error": {"message": "boom"}}, close=True))
            writer.close()
        elif prompt == "whole":
            writer.write(plain(200, {"choices": []}))
        elif prompt == "reset":
            writer.close()
        elif prompt == "strange":
            writer.write(b"220 mail.example.org\r\n\r\n")
        elif prompt == "hang":
            await asyncio.Event().wait()
        else:
            await self._stream(prompt, writer)
        await writer.drain()

    async def _stream(self, prompt: str, writer: asyncio.StreamWriter) -> None:
        if prompt == "together":
            if len(self.bodies) >= self.wanted:
                self._all_here.set()
            await self._all_here.wait()
        writer.write(STREAM_HEAD)
        if prompt == "cut":
            writer.write(chunk(WORDS[0]))
            writer.close()
            return
        events = {
            "counts": [*WORDS, event("[DONE]")],
            "fails": [WORDS[0], event({"error": {"message": "out of luck"}}), event("[DONE]")],
            "empty": [event("[DONE]")],
        }.get(prompt, ANSWER)
        for each in events:
            writer.write(chunk(each))
        writer.write(chunk(b""))
        if prompt == "leaves":  # closes what it might keep, without a word
            writer.close()


def _prompt(body: dict[str, Any]) -> str:
    found = body.get("prompt") or body.get("messages", [{"content": ""}])[-1]["content"]
    return str(found).partition(" ")[0]


@asynccontextmanager
async def scripted(**script: Any) -> AsyncIterator[ScriptedServer]:
    """A server in this event loop."""
    server = ScriptedServer(**script)
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:
        listener.close()
        server.close()
        await asyncio.sleep(0)


@contextmanager
def scripted_thread() -> Iterator[ScriptedServer]:
    """A server in an event loop of its own, for commands that have theirs."""
    ready, done = threading.Event(), asyncio.Event()
    found: list[tuple[ScriptedServer, asyncio.AbstractEventLoop]] = []

    async def work() -> None:
        async with scripted() as server:
            found.append((server, asyncio.get_running_loop()))
            ready.set()
            await done.wait()

    thread = threading.Thread(target=asyncio.run, args=(work(),))
    thread.start()
    try:
        assert ready.wait(10)
        yield found[0][0]
    finally:
        found[0][1].call_soon_threadsafe(done.set)
        thread.join(10)
