"""The engine thread: events to whoever asked, cancellation, refusal, death and shutdown."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import replace
from typing import cast

import pytest
from tests.fakes import FakeRunner, continuation, make_request

from kokuban.core.config import SchedulerConfig
from kokuban.core.errors import Overloaded, PromptTooLong, ShuttingDown, StepFailed
from kokuban.core.request import FinishReason, Request
from kokuban.core.step import StepPlan, StepResult, TokenEvent
from kokuban.engine.client import EngineInfo
from kokuban.engine.core import EngineCore
from kokuban.engine.grammars import Ready
from kokuban.engine.mailbox import MAX_UNREAD
from kokuban.engine.thread import EngineThread, Letter, Submission
from kokuban.kvcache.manager import Manager
from kokuban.kvcache.pool import BlockPool
from kokuban.kvcache.prefix import KeySpace
from kokuban.observe.clock import SystemClock
from kokuban.sampling.grammar import CompiledGrammar
from kokuban.scheduler.scheduler import Scheduler

INFO = EngineInfo(
    model="m", vocab_size=50_000, max_context_tokens=128, block_size=16, num_blocks=8,
    bytes_per_token=1, kv_pool_bytes=128, num_kv_tokens=128, requests_at_full_length=1,
    kv_dtype="bf16", threads=1, isa="scalar", token_budget=64,
)  # fmt: skip


class FakeExecutor:
    """Runs plans on a `FakeRunner`; can be held at a gate, and can be told to break."""

    depth = 0

    def __init__(self) -> None:
        self._runner = FakeRunner()
        self._result: StepResult | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.permits: threading.Semaphore | None = None
        """Where there are any, each step takes one."""

        self.broken = False
        self.closed = False

    def submit(self, plan: StepPlan) -> None:
        assert self.gate.wait(10), "the gate was never opened"
        assert self.permits is None or self.permits.acquire(timeout=10), "no more steps"
        if self.broken:
            raise RuntimeError("the kernel burnt")
        self._result = self._runner.run(plan)

    def collect(self) -> StepResult:
        assert self._result is not None
        return self._result

    def close(self) -> None:
        self.closed = True


@contextmanager
def engine(**limits: int) -> Iterator[tuple[EngineThread, FakeExecutor]]:
    config = SchedulerConfig(
        token_budget=64, max_running_requests=limits.pop("max_running_requests", 8), **limits
    )
    space = KeySpace(
        secret=bytes(16), model_digest=b"m", numerics_id="n", kv_dtype="bf16", block_size=16
    )
    manager = Manager(BlockPool(8), block_size=16, key_space=space)
    scheduler = Scheduler(config, manager, max_context_tokens=128)
    executor = FakeExecutor()
    thread = EngineThread(EngineCore(scheduler, manager, executor, SystemClock()), INFO)
    try:
        yield thread, executor
    finally:
        executor.gate.set()
        thread.close()


async def events_of(client: EngineThread, *requests: Request) -> list[TokenEvent]:
    return [event async for event in client.submit(requests)]


def tokens_of(events: list[TokenEvent], name: str) -> list[int]:
    return [
        token.token_id for event in events if event.request_id == name for token in event.tokens
    ]


async def settled(client: EngineThread) -> None:
    """Wait until the engine has nothing left, and has read all that it was told."""
    while client.stats().running or client.stats().waiting:
        await asyncio.sleep(0)
    await client.reset_prefix_cache()


async def test_each_request_gets_its_own_tokens_and_one_end() -> None:
    one, two = make_request("one", 20), make_request("two", 3, max_tokens=7)
    with engine() as (client, _):
        events = await events_of(client, one, two)

        assert tokens_of(events, "one") == continuation(one.prompt_token_ids, 4)
        assert tokens_of(events, "two") == continuation(two.prompt_token_ids, 7)
        ends = [event for event in events if event.finish is not None]
        assert sorted(event.request_id for event in ends) == ["one", "two"]
        assert all(event.usage is not None for event in ends)
        await settled(client)
        assert client.stats().free_blocks == 8
        assert client.stats().output_tokens == 11


async def test_closing_the_iterator_frees_the_blocks() -> None:
    with engine() as (client, _):
        async with aclosing(client.submit([make_request("r", 20, max_tokens=100)])) as events:
            async for _ in events:
                break

        await settled(client)
        assert client.stats().free_blocks == 8


async def test_a_refused_group_leaves_nothing_behind() -> None:
    with engine() as (client, _):
        with pytest.raises(PromptTooLong):
            await events_of(client, make_request("fits"), make_request("not", 200))

        await settled(client)
        assert client.stats().free_blocks == 8
        assert tokens_of(await events_of(client, make_request("fits")), "fits")


async def test_a_full_queue_refuses() -> None:
    with engine(max_running_requests=1, max_waiting_requests=1) as (client, executor):
        executor.gate.clear()
        running = asyncio.create_task(events_of(client, make_request("a")))
        while not client._boxes:
            await asyncio.sleep(0)
        waiting = asyncio.create_task(events_of(client, make_request("b")))
        refused = asyncio.create_task(events_of(client, make_request("c")))
        await asyncio.sleep(0)
        executor.gate.set()

        with pytest.raises(Overloaded):
            await refused
        assert (await running)[-1].finish is FinishReason.LENGTH
        assert (await waiting)[-1].finish is FinishReason.LENGTH


async def test_a_broken_executor_fails_all_and_is_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Keeps B90 out: docs/bugbank.md."""
    with engine() as (client, executor):
        executor.broken = True

        [event] = await events_of(client, make_request("r"))

        assert event.finish is FinishReason.ERROR
        # What broke is the operator's business, and in the log.
        assert event.error == "the engine stopped after an internal error; see the server's log"
        await asyncio.to_thread(client.close)
        assert not client.alive()
        assert executor.closed
        assert "the kernel burnt" in caplog.text


async def test_close_ends_what_runs_and_refuses_what_comes() -> None:
    with engine() as (client, executor):
        events: list[TokenEvent] = []
        begun = asyncio.Event()

        async def read() -> None:
            async for event in client.submit([make_request("r", 20, max_tokens=100)]):
                events.append(event)
                begun.set()

        task = asyncio.create_task(read())
        await begun.wait()
        await asyncio.to_thread(client.close)
        await task

        assert events[-1].finish in (FinishReason.ERROR, FinishReason.LENGTH)
        assert executor.closed
        with pytest.raises(ShuttingDown):
            await events_of(client, make_request("late"))


class Grammars:
    """Compiles when it is told to."""

    def prepare(self, source: str, ready: Ready) -> None:
        self.ready = ready

    def close(self) -> None: ...


async def test_who_leaves_when_a_grammar_has_just_been_compiled_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = make_request("r", 5, max_tokens=100)
    request = replace(plain, params=replace(plain.params, grammar="start: /a*/"))
    grammars = Grammars()
    with engine() as (client, _):
        put_in = client._put_in

        def overtaken(what: Letter) -> None:
            """The cancellation comes between the end of compiling and the inbox."""
            if isinstance(what, Submission):
                client.cancel(request.id)
            put_in(what)

        monkeypatch.setattr(client, "_grammars", grammars)
        monkeypatch.setattr(client, "_put_in", overtaken)
        asked = asyncio.create_task(events_of(client, request))
        await asyncio.sleep(0)
        grammars.ready(cast("CompiledGrammar", object()))
        await client.reset_prefix_cache()  # It has read all that it was told.
        num_running = len(client._boxes)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)

    assert num_running == 0


async def test_a_reset_forgets_what_is_cached_between_two_steps() -> None:
    prompt = range(20)
    cached = []
    with engine() as (client, _):
        for name in ("cold", "warm", "cold again"):
            if name == "cold again":
                assert await client.reset_prefix_cache() == 2
            events = await events_of(client, make_request(name, prompt=prompt))
            assert tokens_of(events, name) == continuation(prompt, 4)
            assert events[-1].usage is not None
            cached.append(events[-1].usage.cached_tokens)

    assert cached == [0, 19, 0]


async def test_a_reset_of_an_engine_that_has_stopped_says_so() -> None:
    with engine() as (client, executor):
        executor.broken = True
        await events_of(client, make_request("r", 5))
        client._thread.join()

        with pytest.raises(StepFailed, match="has stopped"):
            await client.reset_prefix_cache()
    with pytest.raises(ShuttingDown):
        await client.reset_prefix_cache()


async def fall_behind(
    client: EngineThread, executor: FakeExecutor, reading: AsyncIterator[TokenEvent]
) -> TokenEvent:
    """Read one event and no more until the engine has suspended the reader's requests."""
    executor.permits = threading.Semaphore(MAX_UNREAD + 8)  # fewer than the tokens of an answer
    first = await anext(reading)
    core = client._core
    async with asyncio.timeout(10):
        # The engine waits in a step for a permit until it has been told.
        while not client._inbox and not core._scheduler.suspended:
            await asyncio.sleep(0)
        executor.permits.release(1000)
        while client.stats().running:
            await asyncio.sleep(0)
    return first


async def test_a_reader_that_is_behind_suspends_its_request_and_nobody_elses() -> None:
    slow, other = make_request("slow", 8, max_tokens=115), make_request("other", 3, max_tokens=90)
    with engine() as (client, executor):
        reading = client.submit([slow])
        events = [await fall_behind(client, executor, reading)]

        told = client.stats()
        assert (told.running, told.waiting, told.free_blocks) == (0, 1, 8)
        assert MAX_UNREAD < told.output_tokens < 115
        others = await events_of(client, other)  # Meanwhile.
        assert tokens_of(others, "other") == continuation(other.prompt_token_ids, 90)
        assert client.stats().output_tokens - told.output_tokens == 90

        events += [event async for event in reading]

    assert tokens_of(events, "slow") == continuation(slow.prompt_token_ids, 115)
    assert [event.finish for event in events if event.finish] == [FinishReason.LENGTH]
    usage = events[-1].usage
    assert usage is not None
    assert usage.preemptions == 1


async def test_a_reader_that_leaves_while_it_is_behind_leaves_nothing_behind() -> None:
    slow = make_request("slow", 8, max_tokens=115)
    with engine() as (client, executor):
        async with aclosing(client.submit([slow])) as reading:
            await fall_behind(client, executor, reading)
        await settled(client)

        assert client.stats().free_blocks == 8
        assert client._core._scheduler.suspended == set()
        again = await events_of(client, slow)
        assert tokens_of(again, "slow") == continuation(slow.prompt_token_ids, 115)


async def test_many_readers_that_read_in_fits_get_every_token() -> None:
    requests = [make_request(f"r{i}", 3 + i, max_tokens=100) for i in range(6)]

    async def read_in_fits(client: EngineThread, request: Request) -> list[TokenEvent]:
        events = []
        async for event in client.submit([request]):
            events.append(event)
            if len(events) % 30 == 0:
                await asyncio.sleep(0.02)
        return events

    with engine() as (client, _):
        found = await asyncio.gather(*(read_in_fits(client, each) for each in requests))
        await settled(client)
        assert client._core._scheduler.suspended == set()

    for request, events in zip(requests, found, strict=True):
        assert tokens_of(events, request.id) == continuation(request.prompt_token_ids, 100)
