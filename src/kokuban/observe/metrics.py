"""The numbers that a Prometheus server reads, under the names that dashboards of the field use.

Two kinds: what the server counts itself, one request at a time (`ServingMetrics`), and what the
engine tells when it is asked (`EngineCollector`, read at each scrape). Every name has the prefix
`kokuban:`; after it stands vLLM's name where vLLM has the same number.

Counters only grow. Nothing here raises into the caller's work: a wrong amount is a log line.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from kokuban.core.step import STEP_SIZES

PREFIX = "kokuban:"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# vLLM's limits, with finer ones below them: small models are fast, and steps on CPUs are not.
_FIRST_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
)
_LATENCY_S = (
    *(0.01, 0.03, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20),
    *(30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680),
)
_TOKEN_GAP_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80),
)
_TOKENS = tuple(base * 10**power for power in range(6) for base in (1, 2, 5))
_CHOICES = (1, 2, 5, 10, 20, 50, 128)

_HISTOGRAMS = {
    "time_to_first_token_seconds": ("From arrival to the first token.", _FIRST_S),
    "inter_token_latency_seconds": ("Between two token events of one choice.", _TOKEN_GAP_S),
    "request_time_per_output_token_seconds": (
        "(End to end - time to first token) / (output tokens - 1), one value a request.",
        _TOKEN_GAP_S,
    ),
    "e2e_request_latency_seconds": ("From arrival to the last token.", _LATENCY_S),
    "request_queue_time_seconds": ("From arrival to the first step of the request.", _LATENCY_S),
    "request_prefill_time_seconds": ("From the first step to the first token.", _LATENCY_S),
    "request_decode_time_seconds": ("From the first token to the last.", _LATENCY_S),
    "request_inference_time_seconds": ("From the first step to the last token.", _LATENCY_S),
    "request_prefill_kv_computed_tokens": ("Prompt tokens not found in the cache.", _TOKENS),
    "request_prompt_tokens": ("Prompt tokens of a request.", _TOKENS),
    "request_generation_tokens": ("Generated tokens of a request, all choices.", _TOKENS),
    "request_params_n": ("Choices that a request asked for.", _CHOICES),
    "request_params_max_tokens": ("Limit of new tokens that a request asked for.", _TOKENS),
}

_COUNTERS = {
    "prompt_tokens": "Prompt tokens of requests that produced a first token.",
    "prompt_tokens_cached": "Prompt tokens whose KV was found in the prefix cache.",
    "generation_tokens": "Tokens that were generated and billed.",
}

REFUSALS = ("queue_full", "rate_limit_exceeded", "too_many_concurrent", "shutting_down", "other")
"""Codes of 429 and 503; what is none of the first is the last, so that labels have a bound."""

CUT_REASONS = ("slow_head", "slow_reader", "too_many_connections")

_log = logging.getLogger(__name__)


class ServingMetrics:
    """What the server sees of its requests. Used on the event loop's thread only.

    Args:
        model: value of the label `model_name` of every series.
        registry: where the series live; an own one for each server, never the process-wide one.
    """

    def __init__(self, model: str, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._model = model
        histograms = {
            name: Histogram(PREFIX + name, text, ["model_name"], registry=registry, buckets=buckets)
            for name, (text, buckets) in _HISTOGRAMS.items()
        }
        counters = {
            name: Counter(PREFIX + name, text, ["model_name"], registry=registry)
            for name, text in _COUNTERS.items()
        }
        # Looked up once: `labels` costs as much as what is done with its result.
        self._observe = {name: each.labels(model) for name, each in histograms.items()}
        self._add = {name: each.labels(model) for name, each in counters.items()}
        self._count_by_reason(registry)

    def _count_by_reason(self, registry: CollectorRegistry) -> None:
        """Make the counters that have a second label, with all values that it can have."""
        model = self._model
        self._finished = Counter(
            PREFIX + "request_success",
            "Requests that ended, by reason: stop, length, abort or error.",
            ["model_name", "finished_reason"],
            registry=registry,
        )
        self._responses = Counter(
            PREFIX + "http_responses",
            "HTTP responses by status code.",
            ["model_name", "status_code"],
            registry=registry,
        )
        self._refused = Counter(
            PREFIX + "requests_refused",
            "Requests that were told to come back later, by the code of the error.",
            ["model_name", "reason"],
            registry=registry,
        )
        self._cut = Counter(
            PREFIX + "connections_cut",
            "Connections that were refused or cut off, by reason.",
            ["model_name", "reason"],
            registry=registry,
        )
        for reason in ("stop", "length", "abort", "error"):
            self._finished.labels(model, reason)
        for reason in CUT_REASONS:
            self._cut.labels(model, reason)
        for reason in REFUSALS:
            self._refused.labels(model, reason)

    def observe(self, name: str, value: float) -> None:
        """Add one value to a histogram of the table above."""
        self._observe[name].observe(value)

    def add(self, name: str, amount: int) -> None:
        """Raise a counter of the table above. An amount below 0 is a fault of ours: a log line."""
        if amount < 0:
            _log.error("metric %s was to fall by %d; ignored", name, -amount)
            return
        self._add[name].inc(amount)

    def finished(self, reason: str) -> None:
        """Count one request, whatever its number of choices."""
        self._finished.labels(self._model, reason).inc()

    def cut(self, reason: str) -> None:
        """Count one connection that ends before its time."""
        self._cut.labels(self._model, reason).inc()

    def refused(self, code: str) -> None:
        """Count one request that is to come back later."""
        reason = code if code in REFUSALS else "other"
        self._refused.labels(self._model, reason).inc()

    def responded(self, status: int) -> None:
        self._responses.labels(self._model, str(status)).inc()

    def describe(self, facts: dict[str, str]) -> None:
        """Publish what does not change, as labels of `cache_config_info`, whose value is 1."""
        gauge = Gauge(
            PREFIX + "cache_config_info",
            "How the KV cache is set up.",
            ["model_name", *facts],
            registry=self._registry,
        )
        gauge.labels(self._model, *facts.values()).set(1)

    def render(self) -> bytes:
        """Everything in the registry, as text of the Prometheus format 0.0.4."""
        return generate_latest(self._registry)


class TierSnapshot(Protocol):
    """The part of a tier's statistics that is exported; see `kvcache.tiers.TierStats`."""

    @property
    def tier(self) -> str: ...
    @property
    def blocks(self) -> int: ...
    @property
    def capacity(self) -> int: ...
    @property
    def written(self) -> int: ...
    @property
    def read(self) -> int: ...
    @property
    def dropped(self) -> int: ...
    @property
    def failed(self) -> int: ...


class Snapshot(Protocol):
    """The part of the engine's statistics that is exported; see `engine.client.EngineStats`."""

    @property
    def running(self) -> int: ...
    @property
    def waiting(self) -> int: ...
    @property
    def free_blocks(self) -> int: ...
    @property
    def num_blocks(self) -> int: ...
    @property
    def steps(self) -> int: ...
    @property
    def step_sizes(self) -> Sequence[int]: ...
    @property
    def step_tokens(self) -> int: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def cached_tokens(self) -> int: ...
    @property
    def preemptions(self) -> int: ...
    @property
    def failed_requests(self) -> int: ...
    @property
    def recomputed_tokens(self) -> int: ...
    @property
    def drafts(self) -> int: ...
    @property
    def drafted_tokens(self) -> int: ...
    @property
    def accepted_tokens(self) -> int: ...
    @property
    def restarts(self) -> int: ...
    @property
    def tiers(self) -> Sequence[TierSnapshot]: ...


class EngineCollector(Collector):
    """Asks the engine for a snapshot at every scrape, so that a gauge is never stale.

    Args:
        model: value of the label `model_name`.
        snapshot: must not block.
    """

    def __init__(self, model: str, snapshot: Callable[[], Snapshot]) -> None:
        self._model = model
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        stats = self._snapshot()
        used = (stats.num_blocks - stats.free_blocks) / stats.num_blocks if stats.num_blocks else 0
        for name, text, value in (
            ("num_requests_running", "Requests that hold KV blocks.", stats.running),
            ("num_requests_waiting", "Requests in the queue.", stats.waiting),
            ("kv_cache_usage_perc", "Share of KV blocks in use; 1 is all of them.", used),
        ):
            gauge = GaugeMetricFamily(PREFIX + name, text, labels=["model_name"])
            gauge.add_metric([self._model], value)
            yield gauge
        for name, text, value in (
            ("num_preemptions", "Times that a request lost its blocks.", stats.preemptions),
            ("engine_steps", "Forward passes.", stats.steps),
            ("corrupted_requests", "Requests that the engine failed.", stats.failed_requests),
            ("prefix_cache_queries", "Prompt tokens looked up when admitted.", stats.prompt_tokens),
            ("recomputed_tokens", "Tokens computed again.", stats.recomputed_tokens),
            ("prefix_cache_hits", "Of those, tokens whose KV was found.", stats.cached_tokens),
            ("engine_restarts", "Times that a dead engine was replaced.", stats.restarts),
            ("spec_decode_num_drafts", "Chunks that held draft tokens.", stats.drafts),
            ("spec_decode_num_draft_tokens", "Draft tokens computed.", stats.drafted_tokens),
            ("spec_decode_num_accepted_tokens", "Of those, right ones.", stats.accepted_tokens),
        ):
            counter = CounterMetricFamily(PREFIX + name, text, labels=["model_name"])
            counter.add_metric([self._model], value)
            yield counter
        yield self._step_sizes(stats)
        yield from self._tiers(stats.tiers)

    def _step_sizes(self, stats: Snapshot) -> Metric:
        """Tokens of a step. The name is vLLM's, of a histogram although it ends in _total."""
        text = "Prompt tokens that a step computed, and tokens that it brought."
        name = PREFIX + "iteration_tokens_total"
        metric = HistogramMetricFamily(name, text, labels=["model_name"])
        limits = (*(f"{size:.1f}" for size in STEP_SIZES), "+Inf")
        counts = accumulate(stats.step_sizes or [0] * len(limits))
        buckets = list(zip(limits, counts, strict=True))
        metric.add_metric([self._model], buckets, stats.step_tokens)
        return metric

    def _tiers(self, tiers: Sequence[TierSnapshot]) -> Iterator[Metric]:
        """Blocks below the pool, by tier; nothing where there is none."""
        gauges = {
            "kv_tier_blocks": ("Blocks that a tier below the pool has.", "blocks"),
            "kv_tier_capacity_blocks": ("Blocks that it holds; 0: no limit.", "capacity"),
        }
        counters = {
            "kv_tier_written_blocks": ("Blocks that came down.", "written"),
            "kv_tier_read_blocks": ("Blocks that went up.", "read"),
            "kv_tier_dropped_blocks": ("Blocks not kept for want of room or time.", "dropped"),
            "kv_tier_failed_blocks": ("Blocks asked for and gone, or not right.", "failed"),
        }
        if not tiers:
            return
        labels = ["model_name", "tier"]
        for name, (text, field) in gauges.items():
            gauge = GaugeMetricFamily(PREFIX + name, text, labels=labels)
            for tier in tiers:
                gauge.add_metric([self._model, tier.tier], getattr(tier, field))
            yield gauge
        for name, (text, field) in counters.items():
            counter = CounterMetricFamily(PREFIX + name, text, labels=labels)
            for tier in tiers:
                counter.add_metric([self._model, tier.tier], getattr(tier, field))
            yield counter
