"""Which tokens a step computes: budget, chunks, decodes beside prefills."""

import pytest
from tests.fakes import continuation, make_request
from tests.unit.scheduler.helpers import Bench, sizes

from kokuban.core.request import BlockId, RequestId
from kokuban.core.step import Admission, Chunk, StepPlan


def test_the_whole_of_the_first_plans_of_two_requests() -> None:
    bench = Bench(token_budget=16)
    one, two = make_request("one", 18), make_request("two", 5)
    bench.add(one, two)
    said = continuation(one.prompt_token_ids, 1)

    plans = [bench.step(), bench.step(), bench.step()]

    prompt = one.prompt_token_ids
    assert plans[0] == StepPlan(
        step=0,
        chunks=(Chunk(one.id, 0, prompt[:16], ((BlockId(0),),), samples=False),),
        admitted=(Admission(one),),
    )
    assert plans[1] == StepPlan(
        step=1,
        chunks=(
            Chunk(one.id, 16, prompt[16:], ((BlockId(1),),), samples=True),
            Chunk(two.id, 0, two.prompt_token_ids, ((BlockId(2),),), samples=True),
        ),
        admitted=(Admission(two),),
    )
    assert plans[2].chunks[0] == Chunk(one.id, 18, tuple(said), ((),), samples=True)
    assert plans[2] == StepPlan(step=2, chunks=plans[2].chunks)


def test_a_prompt_of_2000_tokens_takes_one_step_if_the_budget_allows() -> None:
    bench = Bench(num_blocks=200, token_budget=2048)
    bench.add(make_request(num_tokens=2000))

    assert sizes(bench.step()) == {"r": 2000}


def test_n_tokens_take_the_prefill_and_n_minus_1_decode_steps() -> None:
    bench = Bench()
    bench.add(make_request(num_tokens=10, max_tokens=7))

    bench.run()

    assert [sizes(plan)["r"] for plan in bench.plans] == [10, 1, 1, 1, 1, 1, 1]
    bench.assert_text_as_alone("r", 7)


@pytest.mark.parametrize(
    ("num_decoders", "token_budget", "max_prefill_tokens", "chunks"),
    [
        (0, 2048, None, [2048] * 4),
        (1, 2048, None, [2047] * 4 + [4]),
        (8, 2048, None, [2040] * 4 + [32]),
        (128, 2048, None, [1920] * 4 + [512]),
        (8, 2056, 2048, [2048] * 4),
        (0, 2056, 2048, [2048] * 4),
    ],
)
def test_a_prompt_of_8192_tokens_beside_decoders(
    num_decoders: int, token_budget: int, max_prefill_tokens: int | None, chunks: list[int]
) -> None:
    """Each step carries every decode token, and fills what is left of the budget with prefill."""
    bench = Bench(
        num_blocks=2000,
        token_budget=token_budget,
        max_prefill_tokens=max_prefill_tokens,
        max_running=256,
    )
    decoders = [make_request(f"d{index}", 8, max_tokens=50) for index in range(num_decoders)]
    bench.add(*decoders)
    if decoders:
        bench.step()
    bench.add(make_request("long", 8192))

    plans = [sizes(bench.step()) for _ in chunks]

    assert [plan["long"] for plan in plans] == chunks
    for plan in plans:
        assert list(plan.items())[:-1] == [(request.id, 1) for request in decoders]
        assert sum(plan.values()) <= token_budget
    assert len(bench.tokens("long")) == 1, "the last chunk was sampled from"
    assert "long" not in {event.request_id for event in bench.events[: -num_decoders - 1]}


def test_the_cap_on_prefill_holds_over_all_prompts_of_a_step() -> None:
    bench = Bench(token_budget=64, max_prefill_tokens=20)
    bench.add(make_request("a", 15), make_request("b", 15), make_request("c", 15))

    assert sizes(bench.step()) == {"a": 15, "b": 5}
    assert sizes(bench.step()) == {"a": 1, "b": 10, "c": 10}
    assert sizes(bench.step()) == {"a": 1, "b": 1, "c": 5}


def test_the_last_token_of_a_prompt_counts_as_prefill() -> None:
    bench = Bench(token_budget=64, max_prefill_tokens=10)
    bench.add(make_request("a", 11), make_request("b", 1), make_request("c", 20))

    bench.step()

    assert sizes(bench.step()) == {"a": 1, "b": 1, "c": 8}


def test_prompts_under_way_go_before_new_ones() -> None:
    bench = Bench(token_budget=32)
    bench.add(make_request("a", 50))
    bench.step()
    bench.add(make_request("b", 50, priority=-1))

    assert sizes(bench.step()) == {"a": 18, "b": 14}


def test_no_more_requests_run_than_allowed() -> None:
    bench = Bench(max_running=2)
    bench.add(*(make_request(name, 2, max_tokens=2) for name in "abc"))

    assert sizes(bench.step()) == {"a": 2, "b": 2}
    assert sizes(bench.step()) == {"a": 1, "b": 1}
    assert sizes(bench.step()) == {"c": 2}


def test_rows_that_ended_are_told_once() -> None:
    bench = Bench()
    bench.add(make_request("a", max_tokens=1), make_request("b", max_tokens=3))

    bench.step()
    assert bench.step().ended == ("a",)
    assert bench.step().ended == ()
    assert bench.scheduler.plan(0.0) is None
    bench.add(make_request("c"))
    assert bench.step().ended == ("b",)


def test_nothing_to_do_is_no_plan() -> None:
    assert Bench().scheduler.plan(0.0) is None


def test_a_step_must_be_committed_before_the_next_is_planned() -> None:
    bench = Bench()
    bench.add(make_request())
    bench.scheduler.plan(0.0)

    with pytest.raises(AssertionError, match="the step before has not been committed"):
        bench.scheduler.plan(0.0)


def test_a_missing_token_is_a_bug_that_names_the_request() -> None:
    bench = Bench()
    bench.add(make_request())
    plan = bench.scheduler.plan(0.0)
    assert plan is not None
    result = bench.runner.run(plan)

    with pytest.raises(AssertionError, match="step 0 has 0 tokens for request r"):
        bench.scheduler.commit(plan, type(result)(0, {}), 0.0)


def test_a_window_group_gets_a_table_and_frees_what_is_behind() -> None:
    bench = Bench(num_blocks=20, windows=(None, 20))
    bench.add(make_request(num_tokens=70, max_tokens=30))

    bench.step()
    assert bench.plans[0].chunks[0].new_block_ids == ((0, 1, 2, 3), (4, 5, 6, 7))
    bench.step()
    assert bench.manager.block_table(RequestId("r"), 1) == (-1, -1, -1, 7, 9)
    bench.run()

    bench.assert_text_as_alone("r", 30)
    assert bench.pool.num_free == 20
