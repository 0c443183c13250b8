"""From the outcomes of a run to the figures that are told, each with its formula."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kokuban.bench.answer import Outcome
from kokuban.bench.load import Run
from kokuban.bench.stats import PERCENTILE_RULE, Distribution, distribution

FORMULAS = {
    "arrival": "when a request was due; all times but itl count from it, waiting in the client "
    "included",
    "ttft_s": "first event with text - arrival",
    "itl_s": "time between two events with text of one request, over all such pairs; an event may "
    "carry several tokens (see tokens_per_event), and events read at once are 0 apart",
    "tpot_s": "(end - first event with text) / (output tokens - 1), one value for each request "
    "with text and two or more tokens",
    "e2e_s": "end - arrival; the end is the event with the finish reason",
    "late_s": "when it was sent - arrival: what the client, or its limit on concurrency, added",
    "output_tok_s": "output tokens of answered requests / seconds of the run",
    "total_tok_s": "prompt and output tokens of answered requests / seconds of the run",
    "requests_s": "answered requests / seconds of the run",
    "goodput_requests_s": "answered requests within every SLO given / seconds of the run",
    "goodput_tok_s": "output tokens of those / seconds of the run",
    "seconds": "from the start of the run to the end of the last answer or failure",
    "client_cpu_share": "processor seconds of the client / seconds of the run; near 1 the client "
    "is what is measured",
    "percentiles": PERCENTILE_RULE,
    "tokens": "as usage says; of answers without usage (see without_usage) events with text",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """What a user accepts; None: anything."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None

    def holds(self, outcome: Outcome) -> bool:
        """Whether an answer came in time. One without a TPOT (a single token) has none to miss;
        one without text has missed any bound on its first."""
        if self.ttft_ms is not None:
            ttft_s = outcome.ttft_s
            if ttft_s is None or ttft_s * 1e3 > self.ttft_ms:
                return False
        tpot_s = outcome.tpot_s
        if self.tpot_ms is not None and tpot_s is not None and tpot_s * 1e3 > self.tpot_ms:
            return False
        return self.e2e_ms is None or outcome.e2e_s * 1e3 <= self.e2e_ms

    @property
    def given(self) -> bool:
        return (self.ttft_ms, self.tpot_ms, self.e2e_ms) != (None, None, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeFigures:
    """What a run showed. `FORMULAS` says what each is."""

    sent: int
    answered: int
    errors: dict[str, int]
    """Failed requests by kind, most first."""

    error_examples: dict[str, str]
    """What the first failure of each kind said."""

    seconds: float
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    without_usage: int
    """Answers whose stream held no usage."""

    without_cached: int
    """Answers whose usage says nothing of cached tokens."""

    tokens_per_event: float | None
    output_tok_s: float
    total_tok_s: float
    requests_s: float
    goodput_requests_s: float | None
    """None where no SLO was given."""

    goodput_tok_s: float | None
    within_slo: int | None
    max_running: int
    connections: int
    client_cpu_share: float
    ttft_s: Distribution | None
    itl_s: Distribution | None
    tpot_s: Distribution | None
    e2e_s: Distribution | None
    late_s: Distribution | None
    prompt_lengths: Distribution | None
    output_lengths: Distribution | None


def figures_of(run: Run, slo: Slo) -> ServeFigures:
    """All figures of a run."""
    answered = [outcome for outcome in run.outcomes if outcome.error is None]
    failed = [outcome for outcome in run.outcomes if outcome.error is not None]
    good = [outcome for outcome in answered if slo.holds(outcome)] if slo.given else None
    seconds = run.seconds
    outputs = sum(outcome.tokens for outcome in answered)
    prompts = sum(outcome.prompt_tokens or 0 for outcome in answered)
    events = sum(len(outcome.text_s) for outcome in answered)

    def per_s(count: float) -> float:
        return count / seconds if seconds else 0.0

    return ServeFigures(
        sent=len(run.outcomes),
        answered=len(answered),
        errors=dict(Counter(str(outcome.error) for outcome in failed).most_common()),
        error_examples={str(outcome.error): outcome.detail for outcome in reversed(failed)},
        seconds=seconds,
        prompt_tokens=prompts,
        output_tokens=outputs,
        cached_tokens=sum(outcome.cached_tokens or 0 for outcome in answered),
        without_usage=sum(outcome.output_tokens is None for outcome in answered),
        without_cached=sum(outcome.cached_tokens is None for outcome in answered),
        tokens_per_event=outputs / events if events else None,
        output_tok_s=per_s(outputs),
        total_tok_s=per_s(outputs + prompts),
        requests_s=per_s(len(answered)),
        goodput_requests_s=None if good is None else per_s(len(good)),
        goodput_tok_s=None if good is None else per_s(sum(each.tokens for each in good)),
        within_slo=None if good is None else len(good),
        max_running=run.max_running,
        connections=run.connections,
        client_cpu_share=per_s(run.client_cpu_s),
        **_distributions(run.outcomes, answered),
    )


def _distributions(
    outcomes: Sequence[Outcome], answered: Sequence[Outcome]
) -> dict[str, Distribution | None]:
    def of(value: Callable[[Outcome], float | None]) -> Distribution | None:
        found = [value(outcome) for outcome in answered]
        return distribution([each for each in found if each is not None])

    return {
        "ttft_s": of(lambda outcome: outcome.ttft_s),
        "itl_s": distribution([gap for outcome in answered for gap in outcome.itl_s]),
        "tpot_s": of(lambda outcome: outcome.tpot_s),
        "e2e_s": of(lambda outcome: outcome.e2e_s),
        "late_s": distribution([outcome.sent_s - outcome.arrival_s for outcome in outcomes]),
        "prompt_lengths": of(lambda outcome: outcome.prompt_tokens),
        "output_lengths": of(lambda outcome: outcome.tokens),
    }


def document(
    facts: dict[str, Any], settings: dict[str, Any], figures: ServeFigures, run: Run
) -> dict[str, Any]:
    """The whole run as JSON takes it."""
    return {
        "facts": facts,
        "settings": settings,
        "formulas": FORMULAS,
        "figures": asdict(figures),
        "requests": [asdict(outcome) for outcome in run.outcomes],
    }
