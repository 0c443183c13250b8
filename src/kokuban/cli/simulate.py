"""`kokuban simulate`: replays a trace of requests through the real scheduler, without a model.

policy: hit rates of the eviction policy alone, for several capacities; comparable with papers.
real: the engine's own rules in simulated time, with the cost model in the place of the model.
contiguous: the same beside one reserved region for each request, as engines without pages do.
rules: from policy to real, with one rule of the engine more in each row.
pauses: sessions whose tools take their time, with and without telling the engine so.
"""

import functools
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import click

from kokuban.cli import options
from kokuban.cli.commands import Argument, Option
from kokuban.cli.simulate_rows import (
    Row,
    contiguous_row,
    pauses_row,
    policy_row,
    print_rows,
    real_row,
    rule_rows,
    title,
)
from kokuban.cli.simulate_setup import Options, block_worth, capacities, make_setup
from kokuban.core.config import EVICTIONS, Eviction
from kokuban.core.errors import ConfigError

if TYPE_CHECKING:
    from kokuban.simulate.pauses import Pausing
    from kokuban.simulate.replay import Progress, ReplaySetup
    from kokuban.simulate.trace import Trace

SHARES = (0.01, 0.05, 0.1, 0.25, 0.5)
"""Capacities of the policy mode when none is given, of the names in the trace; then all of them."""

TracePath = Annotated[
    Path,
    Argument(
        help="A trace, a folder of agent sessions, or made-up agents such as agents:40: see "
        "docs/simulate.md."
    ),
]
Mode = Annotated[str, Option(help="policy, real, contiguous, rules or pauses.")]
Capacity = Annotated[
    str,
    Option(
        help="Blocks of the pool; several in the modes policy and rules, like 1000,10000,0 (0: "
        "all names fit)."
    ),
]
KvRam = Annotated[
    str | None,
    Option(help="Host memory for KV that leaves the pool, like 4GiB. By default none."),
]
Policy = Annotated[str, Option(help="lru, cost, or both as lru,cost.")]
ModelName = Annotated[
    str, Option("--model", help="llama-8b, smollm2-135m, or any model as for `serve`.")
]
MachineName = Annotated[
    str, Option("--machine", help="here (see `kokuban bench machine`), or h100.")
]
Rate = Annotated[float, Option(least=1e-6, help="Arrivals come so many times as fast.")]
Limit = Annotated[int, Option(least=0, help="Replay the first requests only. 0: all.")]
TokenBudget = Annotated[int, Option(help="Tokens computed in one step.")]
MaxRunning = Annotated[int, Option("--max-running-requests", help="Most requests at once.")]
AsJson = Annotated[bool, Option("--json", help="Print JSON instead of tables.")]


def simulate(
    trace: TracePath,
    mode: Mode = "real",
    capacity: Capacity = "",
    kv_memory: options.KvMemory = None,
    kv_ram: KvRam = None,
    policy: Policy = "lru",
    model: ModelName = "smollm2-135m",
    machine: MachineName = "here",
    threads: options.Threads = 0,
    kv_dtype: options.KvDtypeName = "bf16",
    block_size: options.BlockSize = options.DEFAULTS.block_size,
    token_budget: TokenBudget = options.DEFAULTS.token_budget,
    max_running_requests: MaxRunning = options.DEFAULTS.max_running_requests,
    max_context_tokens: options.MaxContextTokens = 0,
    no_prefix_cache: options.NoPrefixCache = False,
    rate: Rate = 1.0,
    limit: Limit = 0,
    as_json: AsJson = False,
) -> None:
    """Replay a trace through pool, manager and scheduler: hit rates, waste, latencies."""
    chosen = Options(
        capacity=capacity,
        kv_memory=kv_memory,
        kv_ram=kv_ram,
        model=model,
        machine=machine,
        threads=threads,
        kv_dtype=kv_dtype,
        block_size=block_size,
        token_budget=token_budget,
        max_running_requests=max_running_requests,
        max_context_tokens=max_context_tokens,
        no_prefix_cache=no_prefix_cache,
    )
    _run(trace, mode, policy, chosen, rate=rate, limit=limit, as_json=as_json)


def _run(
    path: Path,
    mode: str,
    policy: str,
    chosen: Options,
    *,
    rate: float,
    limit: int,
    as_json: bool,
) -> None:
    runs = {
        "policy": _run_policy,
        "real": _run_real,
        "contiguous": _run_contiguous,
        "rules": _run_rules,
        "pauses": _run_pauses,
    }
    if mode not in runs:
        raise ConfigError(f"mode={mode} is none of {', '.join(runs)}")
    policies = _policies(policy)
    trace = _trace(path).first(limit).at_rate(rate)
    rows = runs[mode](trace, chosen, policies)
    if as_json:
        click.echo(json.dumps({"trace": trace.name, "mode": mode, "results": rows}, indent=2))
    else:
        print_rows(title(trace), rows)


def _trace(path: Path) -> "Trace":
    from kokuban.simulate.agents import is_made_up, make_agents, parse_agents
    from kokuban.simulate.readers import read_trace

    name = str(path)
    return make_agents(parse_agents(name)) if is_made_up(name) else read_trace(path)


def _run_policy(trace: "Trace", chosen: Options, policies: Sequence[Eviction]) -> list[Row]:
    from kokuban.simulate.policy import PolicyReplay

    if not trace.num_blocks:
        raise ConfigError(f"{trace.name} names no blocks, so nothing can be hit; use --mode real")
    counts = capacities(chosen.capacity) or [
        *(max(1, int(share * trace.num_unique_blocks)) for share in SHARES),
        0,
    ]
    worths = {
        eviction: block_worth(chosen, trace.block_tokens) if eviction == "cost" else None
        for eviction in policies
    }
    replay = PolicyReplay(trace)
    return [
        policy_row(replay.run(count, worths[eviction])) for eviction in policies for count in counts
    ]


def _run_real(trace: "Trace", chosen: Options, policies: Sequence[Eviction]) -> list[Row]:
    from kokuban.simulate.replay import replay

    rows = []
    for eviction in policies:
        setup = make_setup(chosen, eviction)
        with _progress(f"simulating ({eviction})") as report:
            result = replay(trace, setup, report)
        rows.append(real_row(result, setup, eviction))
    return rows


def _run_contiguous(trace: "Trace", chosen: Options, policies: Sequence[Eviction]) -> list[Row]:
    from kokuban.simulate.contiguous import RESERVATIONS, replay_contiguous, reserved_tokens
    from kokuban.simulate.fragmentation import pages_waste, reservation_waste
    from kokuban.simulate.replay import replay

    if any(request.session for request in trace.requests):
        raise ConfigError(
            f"{trace.name} has sessions, whose turns wait for each other; contiguous mode compares "
            f"equal arrivals: use a Mooncake or Azure trace, or --mode real"
        )
    setup = make_setup(chosen, policies[0])
    context = chosen.max_context_tokens or min(trace.max_tokens, setup.max_context_tokens)
    block_size = setup.scheduler.block_size
    with _progress("simulating pages") as report:
        pages = replay(trace, setup, report)
    rows = [contiguous_row(f"pages of {block_size}", pages, pages_waste(trace, block_size), 1.0)]
    for name in RESERVATIONS:
        result = replay_contiguous(
            trace,
            name,
            model=setup.model,
            kv=setup.kv,
            num_slots=setup.num_slots,
            max_context_tokens=context,
            scheduler=setup.scheduler,
        )
        decoding = reservation_waste(
            trace, functools.partial(reserved_tokens, reservation=name, max_context_tokens=context)
        )
        ratio = pages.mean_running / result.mean_running if result.mean_running else 0.0
        rows.append(contiguous_row(name, result, decoding, ratio))
    return rows


def _run_rules(trace: "Trace", chosen: Options, policies: Sequence[Eviction]) -> list[Row]:
    from kokuban.simulate.rules import explain

    counts = capacities(chosen.capacity)
    if 0 in counts or not counts or policies != ["lru"]:
        raise ConfigError(
            f"rules are explained for --policy lru at a --capacity of so many blocks of the trace, "
            f"such as 1000,10000, each 1 or more; not for capacity={chosen.capacity}, "
            f"policy={','.join(policies)}"
        )
    setup = make_setup(replace(chosen, capacity="1"), "lru")
    rows = []
    for count in counts:
        with _progress(f"simulating {count:,} blocks") as report:
            rows += rule_rows(count, explain(trace, count, setup, report))
    return rows


def _run_pauses(trace: "Trace", chosen: Options, policies: Sequence[Eviction]) -> list[Row]:
    from kokuban.simulate.pauses import replay_pauses

    if not any(request.session for request in trace.requests) or not chosen.kv_ram:
        raise ConfigError(
            f"pauses are of sessions whose KV can leave the pool: give --kv-ram and a trace with "
            f"sessions, such as agents:40; not {trace.name} with kv_ram={chosen.kv_ram}"
        )
    wide = make_setup(chosen, policies[0])
    narrow = replace(wide, num_ram_blocks=0)
    runs: list[tuple[ReplaySetup, Pausing]] = [
        (narrow, "never"),
        (narrow, "told"),
        (wide, "never"),
        (wide, "told"),
        (wide, "learned"),
    ]
    rows = []
    for setup, pausing in runs:
        with _progress(f"simulating (paused: {pausing})") as report:
            rows.append(pauses_row(replay_pauses(trace, setup, pausing, report), setup, pausing))
    return rows


def _policies(text: str) -> list[Eviction]:
    names = [part.strip() for part in text.split(",")]
    if unknown := [name for name in names if name not in EVICTIONS]:
        raise ConfigError(f"policy={unknown[0]} is none of {', '.join(EVICTIONS)}")
    return cast("list[Eviction]", names)


@contextmanager
def _progress(what: str) -> Iterator["Progress"]:
    """A bar on standard error, where that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Bars(
        *columns,
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bars:
        task = bars.add_task(what)
        yield lambda done, total: bars.update(task, completed=done, total=total)
