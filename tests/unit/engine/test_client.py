"""What every `EngineClient` does, be the engine a thread or a process."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, suppress
from dataclasses import replace
from pathlib import Path

import pytest
from tests.fakes import continuation, fake_embedding, make_request
from tests.unit.engine.scripted import KINDS, NUM_BLOCKS, Kind, engine, events_of, until

from kokuban.core.errors import (
    Overloaded,
    PromptTooLong,
    RequestError,
    ShuttingDown,
    StepFailed,
)
from kokuban.core.request import FinishReason, Pin, RequestId
from kokuban.core.session import SessionStatus
from kokuban.core.step import TokenEvent
from kokuban.engine.client import EngineClient
from kokuban.kvcache.events import START, Cursor, Replay


@pytest.fixture(scope="module", params=KINDS)
def client(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EngineClient]:
    """One engine for all tests that leave it as they found it."""
    with engine(request.param, tmp_path_factory.mktemp("engine")) as found:
        yield found


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


def tokens_of(events: list[TokenEvent], name: str) -> list[int]:
    return [
        token.token_id for event in events if event.request_id == name for token in event.tokens
    ]


async def settled(client: EngineClient) -> None:
    """Wait until the engine has nothing left."""
    await until(lambda: not (client.stats().running or client.stats().waiting))


async def next_of(replays: AsyncIterator[Replay]) -> Replay:
    async with asyncio.timeout(20):
        return await anext(replays)


async def test_each_request_gets_its_own_tokens_and_one_end(client: EngineClient) -> None:
    one, two = make_request("one", 20), make_request("two", 3, max_tokens=7)

    events = await events_of(client, one, two)

    assert tokens_of(events, "one") == continuation(one.prompt_token_ids, 4)
    assert tokens_of(events, "two") == continuation(two.prompt_token_ids, 7)
    ends = [event for event in events if event.finish is not None]
    assert sorted(event.request_id for event in ends) == ["one", "two"]
    assert all(event.usage is not None for event in ends)
    assert client.stats().free_blocks == NUM_BLOCKS
    assert client.ready()
    assert client.alive()


async def test_every_field_of_a_request_arrives_and_every_field_of_an_event_comes_back(
    client: EngineClient,
) -> None:
    plain = make_request(
        "é\N{SNOWMAN}\U0001f600", 40, prompt_logprobs=2, tenant="ta\nnt", cache_scope="\x00",
        session="日本", priority=-3, deadline_s=1e12, end_token_ids=(1, 2), pins=[Pin(16, 0.5)],
    )  # fmt: skip
    params = replace(
        plain.params, logit_bias={5: -100.0, 7: 0.25}, seed=-(2**63), max_tokens=3,
        min_tokens=1, stop=("\N{SNOWMAN}", "x"), logprobs=20, grammar="start: /[ü]*/",
    )  # fmt: skip
    request = replace(plain, params=params, seed=2**63 - 1, choice=127)

    events = await events_of(client, request)

    assert tokens_of(events, request.id) == continuation(request.prompt_token_ids, 3)
    scores = [score for event in events for score in event.prompt_logprobs]
    assert [score.token_id for score in scores] == list(request.prompt_token_ids[1:])
    assert [score.logprob for score in scores] == [-float(i) for i in range(1, 40)]
    assert events[-1].finish is FinishReason.LENGTH
    usage = events[-1].usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.output_tokens) == (40, 3)


async def test_a_grammar_that_cannot_be_built_is_refused_before_anything_runs(
    client: EngineClient,
) -> None:
    """B10, B46: the engine goes on, in whatever process it compiles."""
    plain = make_request("r", 5, max_tokens=3)
    request = replace(plain, params=replace(plain.params, grammar="start: ("))

    with pytest.raises(RequestError, match="cannot be built") as caught:
        await events_of(client, request)

    assert caught.value.param == "grammar"
    assert len(tokens_of(await events_of(client, plain), plain.id)) == 3


async def test_who_leaves_while_a_grammar_is_compiled_leaves_nothing(client: EngineClient) -> None:
    plain = make_request("r", 5, max_tokens=400)
    request = replace(plain, params=replace(plain.params, grammar="start: /a*/"))
    asked = asyncio.create_task(events_of(client, request))
    await asyncio.sleep(0)
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)

    await settled(client)
    assert client.stats().free_blocks == NUM_BLOCKS


async def test_the_vector_of_a_prompt_arrives_bit_by_bit(client: EngineClient) -> None:
    request = make_request("pools", 40, pooling="last")

    events = await events_of(client, request)

    assert events[-1].finish is FinishReason.STOP
    assert events[-1].embedding == fake_embedding(request.prompt_token_ids)


async def test_many_requests_at_once_each_get_their_own(client: EngineClient) -> None:
    requests = [make_request(f"r{i}", 5 + i, max_tokens=20) for i in range(32)]

    found = await asyncio.gather(*(events_of(client, request) for request in requests))

    for request, events in zip(requests, found, strict=True):
        assert tokens_of(events, request.id) == continuation(request.prompt_token_ids, 20)
    await settled(client)
    assert client.stats().free_blocks == NUM_BLOCKS


async def test_closing_the_iterator_frees_the_blocks(client: EngineClient) -> None:
    async with aclosing(client.submit([make_request("r", 20, max_tokens=400)])) as events:
        async for _ in events:
            break

    await settled(client)
    assert client.stats().free_blocks == NUM_BLOCKS


async def test_cancelling_one_of_a_group_leaves_the_other(client: EngineClient) -> None:
    stays = make_request("stays", 5, max_tokens=30)
    found: list[TokenEvent] = []
    async with aclosing(client.submit([make_request("goes", 5, max_tokens=400), stays])) as events:
        async for event in events:
            found.append(event)
            client.cancel(RequestId("goes"))
            client.cancel(RequestId("unknown"))
            if event.request_id == "stays" and event.finish:
                break

    assert tokens_of(found, "stays") == continuation(stays.prompt_token_ids, 30)
    await settled(client)
    assert client.stats().free_blocks == NUM_BLOCKS


async def test_a_refused_group_leaves_nothing_behind(client: EngineClient) -> None:
    with pytest.raises(PromptTooLong) as refused:
        await events_of(client, make_request("fits"), make_request("not", 600))

    assert refused.value.num_prompt_tokens == 600
    assert refused.value.code == "context_length_exceeded"
    await settled(client)
    assert client.stats().free_blocks == NUM_BLOCKS
    assert tokens_of(await events_of(client, make_request("fits")), "fits")


async def test_a_prompt_of_a_million_tokens_is_refused_as_any_other(client: EngineClient) -> None:
    with pytest.raises(PromptTooLong, match="has 1000000 tokens"):
        await events_of(client, make_request("long", prompt=[7] * 1_000_000))

    assert tokens_of(await events_of(client, make_request("fits")), "fits")


async def test_a_name_of_half_a_character_harms_nobody(client: EngineClient) -> None:
    with suppress(RequestError):  # A thread takes it; it cannot be sent to a process.
        await events_of(client, make_request("r", tenant="\ud800"))

    assert tokens_of(await events_of(client, make_request("fits")), "fits")


async def test_a_reset_forgets_what_is_cached_between_two_steps(client: EngineClient) -> None:
    prompt = range(20)
    cached = []
    await client.reset_prefix_cache()
    for name in ("cold", "warm", "cold again"):
        if name == "cold again":
            assert await client.reset_prefix_cache() == 2
        events = await events_of(client, make_request(name, prompt=prompt))
        assert tokens_of(events, name) == continuation(prompt, 4)
        assert events[-1].usage is not None
        cached.append(events[-1].usage.cached_tokens)

    assert cached == [0, 19, 0]


async def test_a_session_is_paused_resumed_and_forgotten(client: EngineClient) -> None:
    await events_of(client, make_request("r", 40, tenant="t", session="s"))

    paused = await client.pause_session("t", "s", expected_s=2.5, tools=["ls"])
    status = await client.session_status("t", "s")
    resumed = await client.resume_session("t", "s")
    unknown = await client.pause_session("other", "s", expected_s=None)

    assert isinstance(paused, SessionStatus)
    assert (paused.id, paused.paused, paused.expected_s) == ("s", True, 2.5)
    assert isinstance(status, SessionStatus)
    assert (status.paused, status.num_tokens) == (True, paused.num_tokens)
    assert isinstance(resumed, SessionStatus)
    assert resumed.id == "s"
    assert unknown is None
    assert await client.delete_session("t", "s") is True
    assert await client.delete_session("t", "s") is False
    assert await client.session_status("t", "s") is None


async def test_readers_of_kv_events_miss_nothing_and_may_come_back(client: EngineClient) -> None:
    await client.reset_prefix_cache()
    async with (
        aclosing(client.kv_events()) as one,
        aclosing(client.kv_events()) as two,
    ):
        first = await next_of(one)
        assert (await next_of(two)).cursor == first.cursor
        await events_of(client, make_request("r", prompt=range(100, 140)))
        found = [await next_of(replays) for replays in (one, two)]
    async with aclosing(client.kv_events(first.cursor)) as back:
        again = await next_of(back)
    async with aclosing(client.kv_events(START)) as late:
        all_of_it = await next_of(late)

    assert isinstance(first.cursor, Cursor)
    stored = [event for event in found[0].events if event.kind == "stored"]
    assert stored[0].token_ids == tuple(range(100, 116))
    assert isinstance(stored[0].key, bytes)
    assert found[1].events[: len(found[0].events)] == found[0].events
    assert again.events[: len(found[0].events)] == found[0].events
    assert not again.is_gap
    assert all_of_it.is_gap


async def test_a_full_queue_refuses(kind: Kind, tmp_path: Path) -> None:
    with engine(kind, tmp_path, max_running_requests=1, max_waiting_requests=1) as client:
        (tmp_path / "hold").touch()
        calls = [
            asyncio.create_task(events_of(client, make_request(name))) for name in ("a", "b", "c")
        ]
        await asyncio.sleep(0)
        (tmp_path / "hold").unlink()
        found = await asyncio.gather(*calls, return_exceptions=True)

    refused = [each for each in found if isinstance(each, Overloaded)]
    ends = [each[-1].finish for each in found if isinstance(each, list)]
    assert (len(refused), ends) == (1, [FinishReason.LENGTH] * 2)


async def test_close_ends_what_runs_and_refuses_what_comes(kind: Kind, tmp_path: Path) -> None:
    with engine(kind, tmp_path) as client:
        events: list[TokenEvent] = []
        begun, watching, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def read() -> None:
            async for event in client.submit([make_request("r", 20, max_tokens=450)]):
                events.append(event)
                begun.set()

        async def watch() -> None:
            async for _ in client.kv_events():
                watching.set()
            ended.set()

        tasks = [asyncio.create_task(read()), asyncio.create_task(watch())]
        await asyncio.gather(begun.wait(), watching.wait())
        await asyncio.to_thread(client.close)
        async with asyncio.timeout(10):
            await asyncio.gather(*tasks)

        assert events[-1].finish in (FinishReason.ERROR, FinishReason.LENGTH)
        assert ended.is_set()
        assert (tmp_path / "closed").exists()
        assert not client.ready()
        with pytest.raises(ShuttingDown):
            await events_of(client, make_request("late"))
        with pytest.raises(ShuttingDown):
            await client.reset_prefix_cache()
        with pytest.raises(ShuttingDown):
            await next_of(client.kv_events())


async def test_a_step_that_fails_is_told_to_all_who_wait(kind: Kind, tmp_path: Path) -> None:
    """B88: nobody waits for ever for an engine that has died."""
    with engine(kind, tmp_path) as client:
        reader = client.kv_events()
        await next_of(reader)
        (tmp_path / "slow").touch()
        waiting = [events_of(client, make_request(f"r{i}", 5, max_tokens=230)) for i in range(4)]
        tasks = [asyncio.create_task(events) for events in waiting]
        await until(lambda: client.stats().running == 4)  # One that came later would be refused.
        (tmp_path / "break").touch()

        found = await asyncio.gather(*tasks)
        with pytest.raises(StopAsyncIteration):
            await next_of(reader)

        for *_, event in found:
            assert event.finish is FinishReason.ERROR
            assert event.error is not None
            assert "see the server's log" in event.error
        if kind == "thread":
            assert not client.alive()
            with pytest.raises(StepFailed):
                await events_of(client, make_request("late"))
