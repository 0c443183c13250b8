"""Rates of hand-made steps, and the grouping of tokens by the step that brought them."""

import asyncio

import pytest

from kokuban.bench.offline import StepLog, StepTokens, Work, figures_of


def test_decode_counts_the_steps_in_which_all_decode_and_no_other() -> None:
    """Two requests: one begins at 1 s, the other only at 3 s, while the first goes on slowly."""
    steps = [
        StepTokens(1.0, 1, 1, 0),
        StepTokens(3.0, 2, 1, 0),  # the last first token: the clock starts
        StepTokens(3.5, 2, 0, 0),
        StepTokens(4.0, 2, 0, 1),  # the first one ends: the clock stops
        StepTokens(6.0, 1, 0, 1),
    ]

    found = figures_of(steps, Work(size=2, prompt_tokens=100, output_tokens=4), 0.0, 6.0)

    assert found.ttft_s == 3.0
    assert found.prefill_tok_s == 200 / 3
    assert found.decode_tok_s == 4 / 1.0
    assert found.tpot_s == 0.5
    assert (found.output_tok_s, found.total_tok_s, found.seconds) == (8 / 6, 208 / 6, 6.0)


def test_one_request_decodes_alone() -> None:
    steps = [StepTokens(2.0, 1, 1, 0), StepTokens(3.0, 1, 0, 0), StepTokens(6.0, 1, 0, 1)]

    found = figures_of(steps, Work(size=1, prompt_tokens=8, output_tokens=3), 1.0, 6.0)

    assert (found.ttft_s, found.decode_tok_s, found.tpot_s) == (1.0, 0.5, 2.0)


def test_several_tokens_of_a_step_all_count() -> None:
    """As with speculation."""
    steps = [StepTokens(1.0, 1, 1, 0), StepTokens(2.0, 3, 0, 0), StepTokens(3.0, 2, 0, 1)]

    found = figures_of(steps, Work(size=1, prompt_tokens=8, output_tokens=6), 0.0, 3.0)

    assert found.decode_tok_s == 5 / 2


@pytest.mark.parametrize(
    "steps",
    [
        [StepTokens(1.0, 2, 2, 0), StepTokens(2.0, 2, 0, 2)][:1],
        [StepTokens(1.0, 1, 1, 1), StepTokens(2.0, 1, 1, 1)],
    ],
)
def test_without_a_step_in_which_all_decode_there_is_no_rate(steps: list[StepTokens]) -> None:
    found = figures_of(steps, Work(size=2, prompt_tokens=8, output_tokens=2), 0.0, 2.0)

    assert (found.decode_tok_s, found.tpot_s) == (None, None)


async def test_what_is_noted_in_one_turn_of_the_loop_is_one_step() -> None:
    log = StepLog()
    woken = [asyncio.Event() for _ in range(3)]

    async def consumer(event: asyncio.Event, first: bool) -> None:
        await event.wait()
        log.note(float(len(log.steps)), tokens=1, first=first, last=not first)

    for first in (True, False):
        tasks = [asyncio.create_task(consumer(event, first)) for event in woken]
        await asyncio.sleep(0)
        for event in woken:
            event.set()
        await asyncio.gather(*tasks)
        for event in woken:
            event.clear()

    assert log.steps == [StepTokens(0.0, 3, 3, 0), StepTokens(1.0, 3, 0, 3)]


def test_the_time_between_tokens_is_that_of_one_request() -> None:
    steps = [StepTokens(1.0, 4, 4, 0), StepTokens(1.5, 4, 0, 0), StepTokens(2.0, 4, 0, 4)]

    found = figures_of(steps, Work(size=4, prompt_tokens=8, output_tokens=3), 0.0, 2.0)

    assert (found.decode_tok_s, found.tpot_s) == (8.0, 0.5)
