"""Series, names and the rule that a counter never falls."""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from prometheus_client import CollectorRegistry

from kokuban.kvcache.tiers import TierStats
from kokuban.observe.clock import SystemClock
from kokuban.observe.metrics import EngineCollector, ServingMetrics
from kokuban.observe.vllm_names import with_vllm_names


@dataclass(frozen=True)
class Snapshot:
    running: int = 0
    waiting: int = 0
    free_blocks: int = 0
    num_blocks: int = 0
    steps: int = 0
    step_sizes: Sequence[int] = ()
    step_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    preemptions: int = 0
    failed_requests: int = 0
    recomputed_tokens: int = 0
    drafts: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    restarts: int = 0
    tiers: Sequence[TierStats] = ()


def test_a_counter_never_falls_and_a_fault_does_not_stop_the_caller(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Keeps B92 out: docs/bugbank.md."""
    registry = CollectorRegistry()
    metrics = ServingMetrics("m", registry)
    metrics.add("generation_tokens", 3)

    metrics.add("generation_tokens", -2)

    labels = {"model_name": "m"}
    assert registry.get_sample_value("kokuban:generation_tokens_total", labels) == 3
    assert "generation_tokens was to fall by 2" in caplog.text


def test_every_reason_is_there_before_the_first_request() -> None:
    registry = CollectorRegistry()
    ServingMetrics("m", registry)

    for reason in ("stop", "length", "abort", "error"):
        labels = {"model_name": "m", "finished_reason": reason}
        assert registry.get_sample_value("kokuban:request_success_total", labels) == 0


def test_two_servers_in_one_process_count_apart() -> None:
    first, second = CollectorRegistry(), CollectorRegistry()
    ServingMetrics("m", first).finished("stop")
    ServingMetrics("m", second)

    labels = {"model_name": "m", "finished_reason": "stop"}
    assert first.get_sample_value("kokuban:request_success_total", labels) == 1
    assert second.get_sample_value("kokuban:request_success_total", labels) == 0


def test_the_engine_is_asked_at_each_scrape() -> None:
    snapshots = iter(
        [Snapshot(), Snapshot(running=2, waiting=1, free_blocks=6, num_blocks=8, preemptions=4)]
    )
    registry = CollectorRegistry()
    registry.register(EngineCollector("m", lambda: next(snapshots)))

    first = {s.name: s.value for family in registry.collect() for s in family.samples}
    found = {s.name: s.value for family in registry.collect() for s in family.samples}

    assert first["kokuban:num_requests_running"] == 0
    assert found["kokuban:num_requests_running"] == 2
    assert found["kokuban:num_requests_waiting"] == 1
    assert found["kokuban:kv_cache_usage_perc"] == 0.25
    assert found["kokuban:num_preemptions_total"] == 4


def test_the_systems_clock_does_not_go_back() -> None:
    clock = SystemClock()

    assert clock.now() <= clock.now()


def test_each_tier_has_a_series_of_its_own() -> None:
    registry = CollectorRegistry()
    tiers = [TierStats("ram", 3, 8, 5, 2, 1, 0), TierStats("disk", 40, 0, 44, 7, 4, 6)]
    registry.register(EngineCollector("m", lambda: Snapshot(tiers=tiers)))

    def value(name: str, tier: str) -> float | None:
        return registry.get_sample_value(f"kokuban:{name}", {"model_name": "m", "tier": tier})

    assert value("kv_tier_blocks", "ram") == 3
    assert value("kv_tier_capacity_blocks", "ram") == 8
    assert value("kv_tier_written_blocks_total", "disk") == 44
    assert value("kv_tier_read_blocks_total", "disk") == 7
    assert value("kv_tier_dropped_blocks_total", "ram") == 1
    assert value("kv_tier_failed_blocks_total", "disk") == 6


def test_without_tiers_there_is_no_series_of_them() -> None:
    registry = CollectorRegistry()
    registry.register(EngineCollector("m", Snapshot))

    assert not any("kv_tier" in family.name for family in registry.collect())


def test_speculation_has_the_names_of_the_field() -> None:
    registry = CollectorRegistry()
    snapshot = Snapshot(drafts=3, drafted_tokens=20, accepted_tokens=14)
    registry.register(EngineCollector("m", lambda: snapshot))

    def value(name: str) -> float | None:
        return registry.get_sample_value(f"kokuban:{name}", {"model_name": "m"})

    assert value("spec_decode_num_drafts_total") == 3
    assert value("spec_decode_num_draft_tokens_total") == 20
    assert value("spec_decode_num_accepted_tokens_total") == 14


def test_the_sizes_of_steps_are_a_histogram_under_vllms_name_also_before_the_first_step() -> None:
    sizes = [3, 2, *[0] * 10, 1, 4]  # Of 1, of 2 to 8, of 8,193 to 16,384, and above.
    snapshots = iter([Snapshot(), Snapshot(step_sizes=sizes, step_tokens=99_999)])
    registry = CollectorRegistry()
    registry.register(EngineCollector("m", lambda: next(snapshots)))

    def values() -> dict[str, float]:
        [family] = [each for each in registry.collect() if "iteration" in each.name]
        return {s.labels.get("le", s.name.rpartition("_")[2]): s.value for s in family.samples}

    assert set(values().values()) == {0}
    found = values()
    assert (found["1.0"], found["8.0"], found["8192.0"], found["16384.0"]) == (3, 5, 5, 6)
    assert (found["+Inf"], found["count"], found["sum"]) == (10, 10, 99_999)


def test_a_dashboard_of_vllm_finds_the_sizes_of_steps_with_their_type() -> None:
    registry = CollectorRegistry()
    metrics = ServingMetrics("m", registry)
    registry.register(EngineCollector("m", Snapshot))

    lines = with_vllm_names(metrics.render()).decode().splitlines()

    assert "# TYPE vllm:iteration_tokens_total histogram" in lines
    assert 'vllm:iteration_tokens_total_bucket{le="16384.0",model_name="m"} 0.0' in lines
    assert 'vllm:iteration_tokens_total_count{model_name="m"} 0.0' in lines
