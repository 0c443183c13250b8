"""The speed that the peer benchmarks tell: tokens over the time in which all sequences decode."""

from collections.abc import Callable

import pytest
from benchmarks.peers import worker
from benchmarks.peers.worker import Case, Record

Tick = Callable[[float], None]


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Tick:
    """Sets the time that the record sees."""
    now = [0.0]
    monkeypatch.setattr(worker.time, "perf_counter", lambda: now[0])

    def set_time(time_s: float) -> None:
        now[0] = time_s

    return set_time


def test_one_sequence_decodes_from_its_first_token_to_its_last(at: Tick) -> None:
    record = Record(1)
    for time_s in (2.0, 2.5, 3.0, 4.0):
        at(time_s)
        record.take(0)
    times = record.times()
    assert (times.prefill_s, times.decode_tok_s, times.total_s) == (2.0, 1.5, 4.0)


def test_tokens_before_all_have_begun_and_after_one_has_ended_do_not_count(at: Tick) -> None:
    record = Record(2)
    arrivals = [(1.0, 0), (1.5, 0), (3.0, 0), (3.0, 1), (5.0, 0), (5.0, 1), (5.5, 1), (6.0, 1)]
    for time_s, sequence in arrivals:
        at(time_s)
        record.take(sequence)
    times = record.times()
    assert (times.prefill_s, times.decode_tok_s, times.total_s) == (3.0, 1.0, 6.0)


def test_it_does_not_matter_where_in_a_step_the_window_begins(at: Tick) -> None:
    """Sequence 0 is told of a step a little before sequence 1, which begins the window."""
    record = Record(2)
    for step in range(4):
        for sequence, late_s in ((0, 0.0), (1, 0.25)):
            at(step + late_s)
            record.take(sequence)
    assert record.times().decode_tok_s == 2.0


def test_tokens_that_come_together_all_count(at: Tick) -> None:
    record = Record(1)
    for time_s, count in ((1.0, 1), (2.0, 3), (3.0, 1)):
        at(time_s)
        record.take(0, count)
    assert record.times().decode_tok_s == 2.0


def test_without_a_second_token_nothing_decodes(at: Tick) -> None:
    record = Record(1)
    at(0.5)
    record.take(0)
    assert record.times().decode_tok_s is None


def test_a_case_gives_every_engine_the_same_prompts() -> None:
    prompts = Case(batch=3, prompt=5, new=1, seed=7).prompts()
    assert prompts == Case(batch=3, prompt=5, new=1, seed=7).prompts()
    assert prompts != Case(batch=3, prompt=5, new=1, seed=8).prompts()
    assert [len(prompt) for prompt in prompts] == [5, 5, 5]
