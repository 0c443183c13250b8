"""KV events over the thread border: nothing missed, one wake-up a step, an end with the engine."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from typing import cast

import pytest
from tests.fakes import make_request

from kokuban.core.errors import RequestError, ShuttingDown
from kokuban.core.request import Request, RequestId
from kokuban.core.step import TokenEvent
from kokuban.engine.client import EngineInfo, EngineStats
from kokuban.engine.core import EngineCore
from kokuban.engine.thread import EngineThread
from kokuban.kvcache.events import START, Cursor, EventLog, Replay

INFO = EngineInfo(
    model="m", vocab_size=50_000, max_context_tokens=128, block_size=16, num_blocks=8,
    bytes_per_token=1, kv_pool_bytes=128, num_kv_tokens=128, requests_at_full_length=1,
    kv_dtype="bf16", threads=1, isa="scalar", token_budget=64, prefix_cache=True,
)  # fmt: skip


class Core:
    """Stands for an `EngineCore`: three events for each reset at once, for each cancel in the
    step that follows.
    """

    idle = True
    has_requests = False
    wait_s = None

    def __init__(self, log: EventLog | None) -> None:
        self.log = log
        self.broken = False
        self._cancelled = 0

    def reset_prefix_cache(self) -> int:
        assert self.log is not None
        for key in (b"a", b"b", b"c"):
            self.log.removed("pool", 0, key)
        return 3

    def rest(self) -> None:
        """Nothing to check."""

    def cancel(self, request_id: RequestId) -> None:
        self._cancelled += 1

    def add(self, requests: Sequence[Request]) -> None:
        self.broken = True

    def step(self) -> list[TokenEvent]:
        if self.broken:
            raise RuntimeError("the kernel burnt")
        while self._cancelled:
            self._cancelled -= 1
            self.reset_prefix_cache()
        return []

    def stats(self) -> EngineStats:
        return EngineStats()

    def close(self) -> None:
        pass


@contextmanager
def engine(log: EventLog | None) -> Iterator[EngineThread]:
    thread = EngineThread(cast("EngineCore", Core(log)), INFO)
    try:
        yield thread
    finally:
        thread.close()


async def next_of(replays: AsyncIterator[Replay]) -> Replay:
    async with asyncio.timeout(5):
        return await anext(replays)


def watching(client: EngineThread) -> int:
    return len(client._watchers)


def numbers(replay: Replay) -> list[int]:
    return [event.sequence for event in replay.events]


async def test_a_reader_gets_what_happens_from_now_on() -> None:
    with engine(EventLog("e")) as client:
        await client.reset_prefix_cache()
        async with aclosing(client.kv_events()) as replays:
            assert await next_of(replays) == Replay((), Cursor("e", 3))
            await client.reset_prefix_cache()
            found = await next_of(replays)

    assert numbers(found) == [4, 5, 6]
    assert [event.key for event in found.events] == [b"a", b"b", b"c"]
    assert not found.is_gap


async def test_a_reader_that_comes_back_misses_nothing() -> None:
    with engine(EventLog("e")) as client:
        async with aclosing(client.kv_events()) as replays:
            first = await next_of(replays)
        await client.reset_prefix_cache()
        async with aclosing(client.kv_events(first.cursor)) as replays:
            found = await next_of(replays)

    assert (numbers(found), found.is_gap) == ([1, 2, 3], False)


async def test_a_reader_is_told_of_what_was_not_kept() -> None:
    with engine(EventLog("e")) as client:
        await client.reset_prefix_cache()
        async with aclosing(client.kv_events(START)) as replays:
            found = await next_of(replays)

    assert found == Replay((), Cursor("e", 3), is_gap=True, num_lost=3)


async def test_a_step_wakes_a_loop_once_however_many_events_and_readers_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = asyncio.get_running_loop()
    with engine(EventLog("e")) as client:
        async with (
            aclosing(client.kv_events()) as one,
            aclosing(client.kv_events()) as two,
        ):
            await next_of(one)
            await next_of(two)
            woken: list[str] = []
            call = loop.call_soon_threadsafe

            def counted(callback: object, *args: object, **more: object) -> object:
                woken.append(getattr(callback, "__name__", ""))
                return call(callback, *args, **more)  # type: ignore[arg-type]

            monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
            client.cancel(RequestId("r"))
            found = [numbers(await next_of(replays)) for replays in (one, two)]
            monkeypatch.undo()

    assert found == [[1, 2, 3], [1, 2, 3]]
    assert woken.count("_wake_all") == 1


async def test_readers_end_with_the_engine_and_leave_nothing_behind() -> None:
    with engine(EventLog("e")) as client:
        async with aclosing(client.kv_events()) as gone:
            await next_of(gone)
        replays = client.kv_events()
        await next_of(replays)
        assert watching(client) == 1
        waiting = asyncio.ensure_future(next_of(replays))
        await asyncio.sleep(0)

        await asyncio.to_thread(client.close)

        with pytest.raises(StopAsyncIteration):
            await waiting
        assert watching(client) == 0
        with pytest.raises(ShuttingDown):
            await next_of(client.kv_events())


async def test_readers_end_with_an_engine_that_breaks() -> None:
    with engine(EventLog("e")) as client:
        replays = client.kv_events()
        await next_of(replays)
        waiting = asyncio.ensure_future(next_of(replays))
        await asyncio.sleep(0)

        async for event in client.submit([make_request("r")]):
            assert event.error is not None

        with pytest.raises(StopAsyncIteration):
            await waiting


async def test_without_a_log_there_is_a_word_and_a_way_out() -> None:
    with (
        engine(None) as client,
        pytest.raises(RequestError, match="start it without --no-prefix-cache") as refused,
    ):
        await next_of(client.kv_events())

    assert refused.value.code == "no_prefix_cache"
