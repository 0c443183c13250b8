"""What is remembered of each tenant: so many requests, so many tokens, and no more."""

import pytest
from prometheus_client import CollectorRegistry

from kokuban.core.request import FinishReason
from kokuban.core.step import SampledToken, Usage
from kokuban.engine.generation import TextDelta
from kokuban.observe.metrics import ServingMetrics
from kokuban.server.history import History
from kokuban.server.record import Record

METRICS = ServingMetrics("m", CollectorRegistry())


class Time:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def now(self) -> float:
        return self.now_s


def record(name: str, tenant: str = "", clock: Time | None = None) -> Record:
    clock = clock or Time()
    return Record(
        api="chat", request_id=name, client_id="-", clock=clock, metrics=METRICS, n=1,
        max_tokens=None, started_s=clock.now(), tenant=tenant,
    )  # fmt: skip


def say(into: Record, num_tokens: int, finish: FinishReason | None = None) -> None:
    tokens = tuple(SampledToken(5) for _ in range(num_tokens))
    usage = Usage(1, num_tokens, queue_s=0.5)
    into._count(TextDelta(choice=0, text="", tokens=tokens, finish=finish, usage=usage))


def names(history: History, tenant: str = "") -> list[str]:
    return [each.request_id for each in history.of(tenant)]


def test_the_oldest_request_is_forgotten_first_and_by_tenant() -> None:
    history = History(2, lambda: 1000)
    for name in ("a", "b", "c"):
        history.add(record(name), [[1, 2]])
    history.add(record("d", "other"), [[1, 2]])

    assert names(history) == ["c", "b"]
    assert names(history, "other") == ["d"]
    assert names(history, "nobody") == []
    assert history.find("", "a") is None
    assert history.find("other", "b") is None
    assert history.num_tokens("") == 4


def test_tokens_are_bounded_with_the_outputs_of_what_has_ended() -> None:
    history = History(10, lambda: 10)
    first, second = record("first"), record("second")
    history.add(first, [[1, 2, 3]])
    history.add(second, [[1, 2, 3]])
    say(second, 5)
    assert (names(history), history.num_tokens("")) == (["second", "first"], 6)

    second.end()

    assert (names(history), history.num_tokens("")) == (["second"], 8)
    assert (first.prompts, first.outputs) == ([], {})


def test_what_is_forgotten_while_it_runs_collects_nothing_more_and_never_comes_back() -> None:
    history = History(1, lambda: 1000)
    first = record("first")
    history.add(first, [[1, 2]])
    say(first, 3)
    history.add(record("second"), [[1]])
    say(first, 3, FinishReason.STOP)
    first.end()

    assert (names(history), history.num_tokens("")) == (["second"], 1)
    assert first.outputs == {}
    assert first.output_tokens == 6


def test_a_prompt_that_is_too_large_is_not_remembered() -> None:
    history = History(10, lambda: 3)
    history.add(record("large"), [[1, 2, 3, 4]])

    assert (names(history), history.num_tokens("")) == ([], 0)


def test_many_short_prompts_count_more_than_their_tokens() -> None:
    history = History(10, lambda: 1000)
    history.add(record("two"), [[1], [2, 3]])
    assert history.num_tokens("") == 3 + 64

    history.add(record("many"), [[1]] * 16)

    assert (names(history), history.num_tokens("")) == (["many"], 16 + 15 * 64)


def test_with_nothing_to_remember_no_token_is_kept() -> None:
    history, one = History(0, lambda: 1000), record("one")
    history.add(one, [[1, 2]])
    say(one, 2)
    one.end()

    assert (names(history), one.prompts, one.outputs) == ([], [], {})


def test_what_was_refused_is_of_no_use() -> None:
    history, one = History(5, lambda: 1000), record("one")
    history.add(one, [[1, 2]])
    one.end("refused")

    assert (names(history), history.num_tokens("")) == ([], 0)


def test_the_latest_resets_are_kept() -> None:
    history = History(5, lambda: 1000)
    for second in range(20):
        history.note_reset(float(second))

    assert history.resets == [float(second) for second in range(4, 20)]


@pytest.mark.parametrize(("told_s", "expected_ms"), [(0.0, 3000.0), (7.0, 7000.0)])
def test_where_the_engine_has_not_seen_the_end_the_tokens_tell_the_time(
    told_s: float, expected_ms: float
) -> None:
    clock = Time()
    one = record("one", clock=clock)
    for second, finish in ((101.0, None), (104.0, FinishReason.STOP)):
        clock.now_s = second
        usage = Usage(1, 1, decode_s=told_s)
        tokens = (SampledToken(5),)
        one._count(TextDelta(choice=0, text="", tokens=tokens, finish=finish, usage=usage))

    assert one.usage_body().kokuban.decode_ms == expected_ms
