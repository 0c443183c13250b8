"""What `kokuban simulate` tells: a row of named numbers for each result, as table or JSON."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from kokuban.core.config import Eviction

if TYPE_CHECKING:
    from kokuban.simulate.contiguous import ContiguousResult
    from kokuban.simulate.pauses import PauseResult, Pausing
    from kokuban.simulate.policy import PolicyResult
    from kokuban.simulate.replay import ReplayResult, ReplaySetup
    from kokuban.simulate.rules import RuleResult
    from kokuban.simulate.trace import Trace

Row = dict[str, Any]
"""Names to numbers, texts, or more names and numbers."""


def policy_row(result: "PolicyResult") -> Row:
    """A policy at a capacity."""
    return {
        "policy": result.eviction,
        "capacity_blocks": result.capacity_blocks,
        "hit_rate": round(result.hit_rate, 6),
        "token_hit_rate": round(result.token_hit_rate, 6),
        "full_block_hit_rate": round(result.full_block_hit_rate, 6),
        "mean_request_rate": round(result.mean_request_rate, 6),
    }


def real_row(result: "ReplayResult", setup: "ReplaySetup", eviction: Eviction) -> Row:
    """A run in simulated time."""
    return {
        "policy": eviction,
        "num_blocks": setup.num_blocks,
        "hit_rate": round(result.hit_rate, 6),
        **asdict(result),
    }


def contiguous_row(
    name: str, result: "ReplayResult | ContiguousResult", decoding: float, ratio: float
) -> Row:
    """A way to hand out KV memory.

    Args:
        decoding: waste of decoding requests alone, in closed form.
        ratio: requests that pages had running, for each that this had.
    """
    return {
        "reservation": name,
        "waste_decoding": round(decoding, 6),
        "waste": round(result.waste, 6),
        "unusable": round(getattr(result, "unusable", 0.0), 6),
        "mean_running": round(result.mean_running, 3),
        "max_running": result.max_running,
        "pages_ratio": round(ratio, 3),
        "num_refused": result.num_refused,
        "duration_s": round(result.duration_s, 3),
        "ttft_p50_s": round(result.ttft_s.p50, 4),
        "ttft_p99_s": round(result.ttft_s.p99, 4),
    }


def rule_rows(capacity_blocks: int, results: "Sequence[RuleResult]") -> list[Row]:
    """One capacity, rule by rule; each with what it changes."""
    rows, before = [], results[0].hit_rate
    for result in results:
        rows.append(
            {
                "capacity_blocks": capacity_blocks,
                "rule": result.rule,
                "hits": result.hits,
                "hit_rate": round(result.hit_rate, 6),
                "change": round(result.hit_rate - before, 6),
                "mean_running": round(result.mean_running, 2),
            }
        )
        before = result.hit_rate
    return rows


def pauses_row(result: "PauseResult", setup: "ReplaySetup", pausing: "Pausing") -> Row:
    """A way to treat sessions while their tools run."""
    return {
        "kv_ram": "yes" if setup.num_ram_blocks else "no",
        "paused": pausing,
        "prefill_tokens": result.prefill_tokens,
        "again_tokens": result.again_tokens,
        "needless_tokens": result.needless_tokens,
        "restored_tokens": result.restored_tokens,
        "preemptions": result.replay.preemptions,
        "num_refused": result.replay.num_refused,
        "ttft_p50_s": round(result.resumed_ttft_s.p50, 4),
        "ttft_p99_s": round(result.resumed_ttft_s.p99, 4),
        "busy_s": round(result.replay.busy_s, 3),
        "places": result.places,
        "resumed_from": result.resumed_from,
    }


def title(trace: "Trace") -> str:
    """A line about the trace."""
    return (
        f"{trace.name}: {len(trace.requests):,} requests, {trace.num_prompt_tokens:,} prompt "
        f"tokens, {trace.num_blocks:,} blocks named, {trace.num_unique_blocks:,} different"
    )


def print_rows(title: str, rows: Sequence[Row]) -> None:
    """One table, a row for each result; a single result stands on its side."""
    from rich.console import Console
    from rich.table import Table

    flat = [_flat(row) for row in (rows if len(rows) == 1 else map(_joined, rows))]
    table = Table(box=None, pad_edge=False)
    if len(flat) == 1:
        table.add_column("")
        table.add_column("", justify="right")
        for name, value in flat[0].items():
            table.add_row(name, _text(value))
    else:
        for name in flat[0]:
            table.add_column(name, justify="right")
        for row in flat:
            table.add_row(*(_text(value) for value in row.values()))
    console = Console(highlight=False)
    console.print(title)
    console.print(table)


def _flat(row: Row) -> Row:
    """Percentiles become values of their own."""
    flat: Row = {}
    for name, value in row.items():
        if isinstance(value, dict):
            flat |= {f"{name}_{inner}": number for inner, number in value.items()}
        else:
            flat[name] = value
    return flat


def _joined(row: Row) -> Row:
    """Counts under names that not every row has become one text."""
    return {
        name: ", ".join(f"{inner} {number:,}" for inner, number in value.items()) or "-"
        if isinstance(value, dict) and not {"p50", "p99"} <= value.keys()
        else value
        for name, value in row.items()
    }


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.4f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
