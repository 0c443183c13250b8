"""Prompts to vectors over an engine client, and their way to an engine in another process."""

import pytest
from tests.server.fakes import FAILS, FakeEngine, fake_vector

from kokuban.core.errors import RequestError
from kokuban.core.pooling import PoolingParams
from kokuban.core.request import FinishReason, Request, RequestId
from kokuban.core.sampling_params import SamplingParams
from kokuban.core.step import TokenEvent
from kokuban.engine.client import EngineStats
from kokuban.engine.embedding import embed, floats_of
from kokuban.engine.generation import TextDelta
from kokuban.engine.process import wire


async def deltas(engine: FakeEngine, *prompts: list[int], **more: object) -> list[TextDelta]:
    return [delta async for delta in embed(engine, prompts, PoolingParams(), **more)]  # type: ignore[arg-type]


async def test_each_prompt_has_one_delta_with_its_number() -> None:
    engine = FakeEngine()

    found = await deltas(engine, [1, 2], [3], tenant="t", request_id="r")

    assert [(delta.choice, delta.embedding) for delta in found] == [
        (0, fake_vector([1, 2])),
        (1, fake_vector([3])),
    ]
    assert all(delta.finish is FinishReason.STOP and not delta.text for delta in found)
    assert [request.id for request in engine.submitted] == ["r-0", "r-1"]
    assert {request.tenant for request in engine.submitted} == {"t"}


async def test_a_prompt_that_fails_says_why() -> None:
    [good, bad] = await deltas(FakeEngine({9: FAILS}), [1], [9])

    assert good.embedding is not None
    assert (bad.finish, bad.error, bad.embedding) == (FinishReason.ERROR, "no number", None)


@pytest.mark.parametrize("prompt", [[512], [-1]])
async def test_ids_outside_of_the_vocabulary_never_reach_the_engine(prompt: list[int]) -> None:
    engine = FakeEngine()

    with pytest.raises(RequestError, match="the ids of this model are 0 to 511"):
        await deltas(engine, [1], prompt)
    assert engine.submitted == []


async def test_who_leaves_early_ends_what_is_left() -> None:
    engine = FakeEngine()
    running = embed(engine, [[1], [2], [3]], PoolingParams())

    await anext(running)
    await running.aclose()

    await engine.until(running=0)


def test_requests_and_vectors_cross_to_an_engine_process_as_they_are() -> None:
    params = PoolingParams(pooling="mean", normalize=False, dimensions=3)
    request = Request(
        id=RequestId("r"), prompt_token_ids=(1, 2), params=SamplingParams(), pooling=params
    )
    event = TokenEvent(RequestId("r"), (), finish=FinishReason.STOP, embedding=b"\x00\xff\x80\x01")

    asked = wire.to_engine(wire.encode(wire.Submit(1, (request,))))
    told = wire.from_engine(wire.encode(wire.Step((event,), EngineStats())))

    assert isinstance(asked, wire.Submit)
    assert asked.requests == (request,)
    assert isinstance(told, wire.Step)
    assert told.events == (event,)


def test_numbers_are_little_endian_floats() -> None:
    assert floats_of(b"\x00\x00\x80\x3f\x00\x00\x00\xc0") == [1.0, -2.0]
