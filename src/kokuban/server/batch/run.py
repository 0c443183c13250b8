"""Runs the lines of a batch: so many at a time, each on its own."""

import asyncio
from collections.abc import Callable, Iterator

import msgspec
from msgspec import Raw
from starlette.types import ASGIApp

from kokuban.server.batch.in_process import Reply, post
from kokuban.server.batch.lines import (
    BadLine,
    BatchRequest,
    BatchResponse,
    BatchResult,
    custom_id_of,
    new_id,
    parse_line,
)
from kokuban.server.batch.sink import BatchStopped, Sink
from kokuban.server.batch.source import Source

_FULL = 429


class Batch:
    """One run. Used once.

    Args:
        app: what answers.
        alive: whether the engine behind it still runs.
        source, sink: the two files.
        concurrency: requests that are with the app at the same time.
        on_result: called with each result.
    """

    def __init__(
        self,
        app: ASGIApp,
        alive: Callable[[], bool],
        source: Source,
        sink: Sink,
        *,
        concurrency: int,
        on_result: Callable[[BatchResult], None],
    ) -> None:
        self._app = app
        self._alive = alive
        self._source = source
        self._sink = sink
        self._concurrency = concurrency
        self._on_result = on_result
        self._in_flight = 0
        self._ended = asyncio.Event()
        """Set, and replaced, whenever a request has ended."""

    async def run(self) -> None:
        """Answer every line that has no result yet.

        Raises:
            BatchStopped: the engine died, or the output cannot be written.
        """
        try:
            async with asyncio.TaskGroup() as group:
                lines = self._left()
                for _ in range(self._concurrency):
                    group.create_task(self._work(lines))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None

    def _left(self) -> Iterator[tuple[int, bytes | None]]:
        """The lines without a result. All workers take from this one iterator."""
        for number, raw in self._source.lines():
            custom_id = None if raw is None else custom_id_of(raw)
            if not self._sink.has(custom_id, number):
                yield number, raw

    async def _work(self, lines: Iterator[tuple[int, bytes | None]]) -> None:
        for number, raw in lines:
            try:
                result = await self._answer(parse_line(number, raw))
            except BadLine as error:
                result = error.result
            self._sink.append(result)
            self._on_result(result)

    async def _answer(self, request: BatchRequest) -> BatchResult:
        reply = await self._post(request)
        if reply.status >= 500 and not self._alive():
            raise BatchStopped(
                f"the engine has stopped; {self._sink.num_done:,} results are in "
                f"{self._sink.path}, and the same command goes on from there"
            )
        body = Raw(msgspec.json.format(reply.body, indent=-1))  # On one line, whoever wrote it.
        response = BatchResponse(reply.status, reply.headers.get("x-request-id", ""), body)
        return BatchResult(id=new_id(), custom_id=request.custom_id, response=response)

    async def _post(self, request: BatchRequest) -> Reply:
        """The answer. Where the server is full, that of a later try: after another request of this
        batch has ended, since nobody else takes its room."""
        while True:
            ended = self._ended
            self._in_flight += 1
            try:
                reply = await post(self._app, request.url, bytes(request.body))
            finally:
                self._in_flight -= 1
            has_hope = self._in_flight > 0 or ended.is_set()
            if reply.status != _FULL or not has_hope:
                self._ended.set()
                self._ended = asyncio.Event()
                return reply
            await ended.wait()
