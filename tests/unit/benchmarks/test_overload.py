"""The overload benchmark sorts what happened, and says which promise was broken."""

from dataclasses import replace

import pytest
from benchmarks.overload import Report, Sample, report_of

from kokuban.bench.answer import Outcome


def answered(index: int, ttft_s: float) -> Outcome:
    return Outcome(
        index=index, arrival_s=1.0, text_s=[1.0 + ttft_s], end_s=2.0 + ttft_s, finish="length"
    )


def failed(index: int, error: str, detail: str = "") -> Outcome:
    return Outcome(index=index, arrival_s=1.0, sent_s=1.0, end_s=1.5, error=error, detail=detail)


REFUSED = [
    failed(2, "http_429", "the queue is full; try again in 3 s"),
    failed(3, "error_event", "the request waited 5.1 s, and its deadline was 5.000 s after"),
]


def report(*outcomes: Outcome, waiting: int = 10, growth_mb: float = 1.0) -> Report:
    samples = [Sample(i, 8, waiting, 100.0 + i * growth_mb / 8, 1.0) for i in range(10)]
    return report_of(outcomes, samples, capacity_rps=2.0, rate_rps=6.0, seconds=10.0, promise_s=5.0)


def test_a_run_that_keeps_its_promises_has_no_problem() -> None:
    found = report(answered(0, 1.0), answered(1, 4.9), *REFUSED)

    assert (found.sent, found.answered, found.refused, found.lost) == (4, 2, 2, {})
    assert (found.rss_first_mb, found.most_waiting) == (100.25, 10)
    assert found.problems() == []


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (report(answered(0, 5.1), *REFUSED), "p99 TTFT 5.10 s is above the 5 s"),
        (report(answered(0, 1.0)), "nobody was refused: this was no overload"),
        (report(*REFUSED), "nobody was answered"),
        (report(answered(0, 1.0), *REFUSED, waiting=22), "22 requests waited at once"),
        (report(answered(0, 1.0), *REFUSED, growth_mb=25.0), "memory grew by 21.9 MB"),
        (
            report(answered(0, 1.0), failed(1, "timeout", "no end"), *REFUSED),
            "1 requests ended with timeout: no end",
        ),
    ],
)
def test_a_broken_promise_is_named(found: Report, problem: str) -> None:
    assert found.problems() == [problem]


def test_numbers_that_do_not_add_up_are_a_problem() -> None:
    found = replace(report(answered(0, 1.0), *REFUSED), sent=9)

    assert found.problems() == ["the numbers of requests do not add up"]
