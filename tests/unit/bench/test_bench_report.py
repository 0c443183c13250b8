"""The figures of hand-made runs: every formula with numbers that can be checked by eye."""

from typing import Any

import pytest

from kokuban.bench.answer import Outcome
from kokuban.bench.load import Run
from kokuban.bench.report import ServeFigures, Slo, document, figures_of

NONE = Slo()


def answer(index: int = 0, **changes: Any) -> Outcome:
    """Due at 1 s, sent at 1.5, text at 2, 3 and 5, ended at 6: five tokens."""
    known: dict[str, Any] = {
        "arrival_s": 1.0,
        "sent_s": 1.5,
        "end_s": 6.0,
        "text_s": [2.0, 3.0, 5.0],
        "prompt_tokens": 10,
        "output_tokens": 5,
        "cached_tokens": 4,
        "finish": "length",
    }
    return Outcome(index=index, **(known | changes))


def figures(*outcomes: Outcome, seconds: float = 10.0, slo: Slo = NONE) -> ServeFigures:
    return figures_of(Run(outcomes, seconds, 2.0, 3, 2), slo)


def test_times_count_from_when_a_request_was_due() -> None:
    one = answer()

    assert one.ttft_s == 1.0
    assert one.e2e_s == 5.0
    assert one.tpot_s == (6 - 2) / (5 - 1)
    assert one.itl_s == [1.0, 2.0]


def test_an_answer_of_one_token_has_no_tpot_and_one_without_text_no_ttft() -> None:
    assert answer(output_tokens=1).tpot_s is None
    assert answer(text_s=[]).ttft_s is None
    assert answer(text_s=[]).tpot_s is None


def test_without_usage_events_are_counted_and_that_is_told() -> None:
    found = figures(answer(output_tokens=None, prompt_tokens=None, cached_tokens=None), answer())

    assert (found.output_tokens, found.prompt_tokens, found.without_usage) == (3 + 5, 10, 1)
    assert found.without_cached == 1


def test_rates_are_over_the_whole_run() -> None:
    found = figures(answer(), answer(1, output_tokens=7, prompt_tokens=20))

    assert found.output_tok_s == 12 / 10
    assert found.total_tok_s == (12 + 30) / 10
    assert found.requests_s == 0.2
    assert found.cached_tokens == 8
    assert found.tokens_per_event == 12 / 6
    assert found.client_cpu_share == 0.2
    assert (found.max_running, found.connections) == (3, 2)


def test_distributions_hold_one_value_for_each_request_or_gap() -> None:
    found = figures(answer(), answer(1, arrival_s=0.0, text_s=[2.0], output_tokens=1))

    assert found.ttft_s is not None
    assert found.itl_s is not None
    assert found.tpot_s is not None
    assert (found.ttft_s.count, found.ttft_s.mean, found.ttft_s.max) == (2, 1.5, 2.0)
    assert (found.itl_s.count, found.itl_s.p50) == (2, 1.5)
    assert (found.tpot_s.count, found.tpot_s.p99) == (1, 1.0)


def test_failed_requests_are_counted_by_kind_and_are_in_no_rate() -> None:
    bad = {"error": "http_500", "detail": "first"}
    found = figures(
        answer(),
        answer(1, **bad),
        answer(2, **(bad | {"detail": "second"})),
        answer(3, error="cut", detail="gone"),
    )

    assert (found.sent, found.answered) == (4, 1)
    assert found.errors == {"http_500": 2, "cut": 1}
    assert found.error_examples == {"http_500": "first", "cut": "gone"}
    assert found.output_tokens == 5
    assert found.e2e_s is not None
    assert found.e2e_s.count == 1
    assert found.late_s is not None
    assert found.late_s.count == 4, "also a request that fails was sent late or in time"


@pytest.mark.parametrize(
    ("slo", "holds"),
    [
        (Slo(ttft_ms=1000), True),
        (Slo(ttft_ms=999), False),
        (Slo(tpot_ms=1000), True),
        (Slo(tpot_ms=999), False),
        (Slo(e2e_ms=5000), True),
        (Slo(e2e_ms=4999), False),
        (Slo(ttft_ms=1000, tpot_ms=1000, e2e_ms=4999), False),
    ],
)
def test_an_slo_holds_when_each_of_its_bounds_does(slo: Slo, holds: bool) -> None:
    found = figures(answer(), slo=slo)

    assert found.within_slo == int(holds)
    assert found.goodput_requests_s == (0.1 if holds else 0)
    assert found.goodput_tok_s == (0.5 if holds else 0)


def test_an_answer_without_text_misses_a_bound_on_its_first() -> None:
    assert not Slo(ttft_ms=1e9).holds(answer(text_s=[]))
    assert Slo(tpot_ms=1).holds(answer(output_tokens=1)), "there is no second token to wait for"


def test_without_an_slo_there_is_no_goodput() -> None:
    found = figures(answer())

    assert (found.within_slo, found.goodput_requests_s, found.goodput_tok_s) == (None, None, None)


def test_a_run_without_any_answer_has_no_distribution_and_no_rate_above_zero() -> None:
    found = figures(answer(error="connect", text_s=[]))

    assert found.ttft_s is None
    assert (found.output_tok_s, found.requests_s, found.tokens_per_event) == (0, 0, None)


def test_the_document_names_a_formula_for_each_time_and_rate() -> None:
    run = Run((answer(),), 10.0, 2.0, 1, 1)
    whole = document({"cpu": "x"}, {"rate": 1}, figures_of(run, NONE), run)

    told = {name for name in whole["figures"] if name.endswith(("_s", "_share"))} | {"seconds"}
    assert told <= set(whole["formulas"])
    assert whole["requests"][0]["text_s"] == [2.0, 3.0, 5.0]
