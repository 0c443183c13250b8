"""`kokuban simulate`: replays a trace of requests through the real scheduler, without a model.

policy: hit rates of the eviction policy alone, for several capacities; comparable with papers.
real: the engine's own rules in simulated time, with the cost model in the place of the model.
contiguous: the same beside one reserved region for each request, as engines without pages do.
"""

import functools
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from kokuban.cli import options
from kokuban.cli.simulate_rows import (
    Row,
    contiguous_row,
    policy_row,
    print_rows,
    real_row,
    title,
)
from kokuban.core.config import (
    EVICTIONS,
    Eviction,
    KvDtype,
    RuntimeConfig,
    SchedulerConfig,
    parse_bytes,
)
from kokuban.core.errors import ConfigError

if TYPE_CHECKING:
    from kokuban.plan.cost import CostModel
    from kokuban.plan.machine import MachineConstants
    from kokuban.program.program import KvSpec
    from kokuban.simulate.policy import Worth
    from kokuban.simulate.replay import Progress, ReplaySetup
    from kokuban.simulate.trace import Trace

SHARES = (0.01, 0.05, 0.1, 0.25, 0.5)
"""Capacities of the policy mode when none is given, of the names in the trace; then all of them."""

DEFAULT_KV_BYTES = 4 << 30

TracePath = Annotated[
    Path, typer.Argument(help="A trace, or a folder of agent sessions: see docs/simulate.md.")
]
Mode = Annotated[str, typer.Option(help="policy, real or contiguous.")]
Capacity = Annotated[
    str,
    typer.Option(
        help="Blocks of the pool; several in policy mode, like 1000,10000,0 (0: all names fit)."
    ),
]
KvRam = Annotated[
    str | None,
    typer.Option(help="Host memory for KV that leaves the pool, like 4GiB. By default none."),
]
Policy = Annotated[str, typer.Option(help="lru, cost, or both as lru,cost.")]
ModelName = Annotated[
    str, typer.Option("--model", help="llama-8b, smollm2-135m, or any model as for `serve`.")
]
MachineName = Annotated[
    str, typer.Option("--machine", help="here (see `kokuban bench machine`), or h100.")
]
Rate = Annotated[float, typer.Option(min=1e-6, help="Arrivals come so many times as fast.")]
Limit = Annotated[int, typer.Option(min=0, help="Replay the first requests only. 0: all.")]
TokenBudget = Annotated[int, typer.Option(help="Tokens computed in one step.")]
MaxRunning = Annotated[int, typer.Option("--max-running-requests", help="Most requests at once.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    """What was given on the command line, not yet checked."""

    capacity: str
    kv_memory: str | None
    kv_ram: str | None
    model: str
    machine: str
    threads: int
    kv_dtype: str
    block_size: int
    token_budget: int
    max_running_requests: int
    max_context_tokens: int
    no_prefix_cache: bool


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
    chosen = _Options(
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
    chosen: _Options,
    *,
    rate: float,
    limit: int,
    as_json: bool,
) -> None:
    from kokuban.simulate.readers import read_trace

    runs = {"policy": _run_policy, "real": _run_real, "contiguous": _run_contiguous}
    if mode not in runs:
        raise ConfigError(f"mode={mode} is none of {', '.join(runs)}")
    policies = _policies(policy)
    trace = read_trace(path).first(limit).at_rate(rate)
    rows = runs[mode](trace, chosen, policies)
    if as_json:
        typer.echo(json.dumps({"trace": trace.name, "mode": mode, "results": rows}, indent=2))
    else:
        print_rows(title(trace), rows)


def _run_policy(trace: "Trace", chosen: _Options, policies: Sequence[Eviction]) -> list[Row]:
    from kokuban.simulate.policy import PolicyReplay

    if not trace.num_blocks:
        raise ConfigError(f"{trace.name} names no blocks, so nothing can be hit; use --mode real")
    capacities = _capacities(chosen.capacity) or [
        *(max(1, int(share * trace.num_unique_blocks)) for share in SHARES),
        0,
    ]
    worths = {
        eviction: _worth(chosen, trace.block_tokens) if eviction == "cost" else None
        for eviction in policies
    }
    replay = PolicyReplay(trace)
    return [
        policy_row(replay.run(count, worths[eviction]))
        for eviction in policies
        for count in capacities
    ]


def _worth(chosen: _Options, block_tokens: int) -> "Worth":
    """Seconds to compute the block at a place of its prompt."""
    model, _, _ = _model(chosen)

    @functools.cache
    def worth(index: int) -> float:
        return model.prefill_s(index * block_tokens, block_tokens)

    return worth


def _run_real(trace: "Trace", chosen: _Options, policies: Sequence[Eviction]) -> list[Row]:
    from kokuban.simulate.replay import replay

    rows = []
    for eviction in policies:
        setup = _setup(chosen, eviction)
        with _progress(f"simulating ({eviction})") as report:
            result = replay(trace, setup, report)
        rows.append(real_row(result, setup, eviction))
    return rows


def _run_contiguous(trace: "Trace", chosen: _Options, policies: Sequence[Eviction]) -> list[Row]:
    from kokuban.simulate.contiguous import RESERVATIONS, replay_contiguous, reserved_tokens
    from kokuban.simulate.fragmentation import pages_waste, reservation_waste
    from kokuban.simulate.replay import replay

    if any(request.session for request in trace.requests):
        raise ConfigError(
            f"{trace.name} has sessions, whose turns wait for each other; contiguous mode compares "
            f"equal arrivals: use a Mooncake or Azure trace, or --mode real"
        )
    setup = _setup(chosen, policies[0])
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


def _setup(chosen: _Options, eviction: Eviction) -> "ReplaySetup":
    """The engine to be simulated."""
    from kokuban.plan.memory import plan_kv
    from kokuban.simulate.replay import ReplaySetup

    config = SchedulerConfig(
        token_budget=chosen.token_budget,
        max_running_requests=min(chosen.max_running_requests, chosen.token_budget),
        block_size=chosen.block_size,
        prefix_cache=not chosen.no_prefix_cache,
        eviction=eviction,
    )
    model, kv, max_positions = _model(chosen)
    num_blocks = _num_blocks(chosen.capacity)
    context = chosen.max_context_tokens or max_positions
    if not num_blocks:
        budget = parse_bytes(chosen.kv_memory) if chosen.kv_memory else DEFAULT_KV_BYTES
        num_blocks = plan_kv(
            kv,
            budget_bytes=budget,
            block_size=config.block_size,
            dtype=_kv_dtype(chosen),
            max_context_tokens=context,
        ).num_blocks
    setup = ReplaySetup(
        model=model,
        kv=kv,
        num_blocks=num_blocks,
        max_context_tokens=context,
        scheduler=config,
    )
    ram_bytes = parse_bytes(chosen.kv_ram) if chosen.kv_ram else 0
    if ram_bytes and chosen.no_prefix_cache:
        raise ConfigError("--kv-ram keeps what the prefix cache names; leave out one of the two")
    return replace(setup, num_ram_blocks=ram_bytes // setup.block_bytes)


def _model(chosen: _Options) -> "tuple[CostModel, KvSpec, int]":
    """Cost model, KV and longest sequence of the model that is simulated."""
    from kokuban.models.registry import build_program
    from kokuban.plan.cost import CostModel
    from kokuban.program.cost import uniform_weight_bytes
    from kokuban.simulate.presets import MODELS, WEIGHT_BITS

    dtype = _kv_dtype(chosen)
    if chosen.model in MODELS:
        config = MODELS[chosen.model]
        program = build_program(config)
        sizes = uniform_weight_bytes(program, WEIGHT_BITS[chosen.model])
    else:
        from kokuban.weights.pull import resolve
        from kokuban.weights.source import open_source

        source = open_source(resolve(chosen.model))
        config = source.config
        program = build_program(config)
        sizes = {name: source.tensor(name).data.nbytes for name in program.weights}
    cost = CostModel(
        program,
        weight_bytes=sizes,
        kv_bytes_per_token=program.kv.bytes_per_token(dtype),
        constants=_machine(chosen),
        chunk_tokens=chosen.token_budget,
    )
    return cost, program.kv, config.max_positions


def _kv_dtype(chosen: _Options) -> KvDtype:
    return RuntimeConfig(kv_dtype=cast("KvDtype", chosen.kv_dtype)).kv_dtype


def _machine(chosen: _Options) -> "MachineConstants":
    from kokuban.simulate.presets import MACHINES

    if chosen.machine in MACHINES:
        return MACHINES[chosen.machine]
    if chosen.machine != "here":
        raise ConfigError(f"machine={chosen.machine} is none of here, {', '.join(MACHINES)}")
    from kokuban.cli.bench_machine import this_machine
    from kokuban.core.env import cache_dir
    from kokuban.plan.machine import load_constants

    cpu, isa, threads = this_machine(chosen.threads)
    return load_constants(cache_dir(), cpu=cpu, isa=isa, threads=threads)


def _policies(text: str) -> list[Eviction]:
    names = [part.strip() for part in text.split(",")]
    if unknown := [name for name in names if name not in EVICTIONS]:
        raise ConfigError(f"policy={unknown[0]} is none of {', '.join(EVICTIONS)}")
    return cast("list[Eviction]", names)


def _capacities(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() for part in parts):
        raise ConfigError(f"capacity={text} is no list of numbers of blocks, such as 1000,10000")
    return [int(part) for part in parts]


def _num_blocks(text: str) -> int:
    """Blocks of the one pool that is simulated in time; 0 when the option was not given."""
    numbers = _capacities(text)
    if len(numbers) > 1 or numbers == [0]:
        raise ConfigError(f"capacity={text}: this mode takes one number of blocks, 1 or more")
    return numbers[0] if numbers else 0


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
