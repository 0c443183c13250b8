"""The fakes find what they are there to find."""

from dataclasses import replace

import pytest
from tests.fakes import FakeClock, FakeRunner, continuation, make_request, next_token

from kokuban.core.request import BlockId, RequestId
from kokuban.core.step import Admission, Chunk, SampledToken, StepPlan


def make_plan(step: int = 0, *, block: int = 0, name: str = "r", num_tokens: int = 3) -> StepPlan:
    request = make_request(name, num_tokens)
    chunk = Chunk(request.id, 0, request.prompt_token_ids, ((BlockId(block),),), samples=True)
    return StepPlan(step, (chunk,), admitted=(Admission(request),))


def test_the_clock_moves_when_told() -> None:
    clock = FakeClock()

    assert clock.advance(1.5) == 1.5
    assert clock() == 1.5


def test_the_text_depends_on_every_token_and_on_their_order() -> None:
    assert next_token([1, 2]) != next_token([2, 1])
    assert next_token([1, 2]) != next_token([3, 2])
    assert continuation([1, 2], 2) == [next_token([1, 2]), next_token([1, 2, next_token([1, 2])])]


def test_requests_of_two_names_have_different_prompts() -> None:
    assert make_request("a").prompt_token_ids[0] != make_request("b").prompt_token_ids[0]


def test_the_runner_says_what_the_model_says() -> None:
    plan = make_plan()

    result = FakeRunner().run(plan)

    expected = SampledToken(next_token(make_request(num_tokens=3).prompt_token_ids))
    assert result.outputs[RequestId("r")].tokens == (expected,)


def test_the_runner_finds_a_block_that_two_requests_write() -> None:
    runner = FakeRunner()
    runner.run(make_plan(block=0, name="a"))
    stolen = make_plan(1, block=0, name="b")
    runner.run(stolen)
    token = next_token(make_request("a", 3).prompt_token_ids)
    decode = Chunk(RequestId("a"), 3, (token,), ((),), samples=True)

    result = runner.run(StepPlan(2, (decode,)))

    alone = continuation(make_request("a", 3).prompt_token_ids, 2)[1]
    assert result.outputs[RequestId("a")].tokens[0].token_id != alone


def test_the_runner_finds_a_gap_a_spare_block_and_a_missing_block() -> None:
    plan = make_plan()
    gap = plan.chunks[0]._replace(start=4, token_ids=(7,))
    spare = plan.chunks[0]._replace(new_block_ids=((BlockId(0), BlockId(1)),))
    missing = plan.chunks[0]._replace(new_block_ids=((),))

    with pytest.raises(AssertionError, match="more tokens than the sequence has"):
        FakeRunner().run(replace(plan, chunks=(gap,)))
    with pytest.raises(AssertionError, match="spare blocks"):
        FakeRunner().run(replace(plan, chunks=(spare,)))
    with pytest.raises(IndexError):
        FakeRunner().run(replace(plan, chunks=(missing,)))


def test_the_runner_frees_rows_before_it_makes_new_ones() -> None:
    runner = FakeRunner()
    runner.run(make_plan())

    runner.run(replace(make_plan(1), ended=(RequestId("r"),)))

    assert runner.row_ids == {RequestId("r")}
