"""What is simulated by `kokuban simulate`: model, machine, pool, as the options say."""

import functools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from kokuban.core.config import (
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
    from kokuban.simulate.replay import ReplaySetup

DEFAULT_KV_BYTES = 4 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
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


def make_setup(chosen: Options, eviction: Eviction) -> "ReplaySetup":
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
    num_blocks = num_blocks_of(chosen.capacity)
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


def _model(chosen: Options) -> "tuple[CostModel, KvSpec, int]":
    """Cost model, KV and longest sequence of the model that is simulated."""
    from kokuban.models.registry import build_program
    from kokuban.plan.cost import CostModel
    from kokuban.program.cost import uniform_weight_bytes
    from kokuban.program.fuse import take_rows_early
    from kokuban.simulate.presets import MODELS, WEIGHT_BITS

    dtype = _kv_dtype(chosen)
    if chosen.model in MODELS:
        config = MODELS[chosen.model]
        program = take_rows_early(build_program(config))
        sizes = uniform_weight_bytes(program, WEIGHT_BITS[chosen.model])
    else:
        from kokuban.weights.pull import resolve
        from kokuban.weights.source import open_source

        source = open_source(resolve(chosen.model))
        config = source.config
        program = take_rows_early(build_program(config))
        sizes = {name: source.tensor(name).data.nbytes for name in program.weights}
    cost = CostModel(
        program,
        weight_bytes=sizes,
        kv_bytes_per_token=program.kv.bytes_per_token(dtype),
        constants=_machine(chosen),
        chunk_tokens=chosen.token_budget,
    )
    return cost, program.kv, config.max_positions


def _kv_dtype(chosen: Options) -> KvDtype:
    return RuntimeConfig(kv_dtype=cast("KvDtype", chosen.kv_dtype)).kv_dtype


def _machine(chosen: Options) -> "MachineConstants":
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


def block_worth(chosen: Options, block_tokens: int) -> "Worth":
    """Seconds to compute the block at a place of its prompt."""
    model, _, _ = _model(chosen)

    @functools.cache
    def worth(index: int) -> float:
        return model.prefill_s(index * block_tokens, block_tokens)

    return worth


def capacities(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() for part in parts):
        raise ConfigError(f"capacity={text} is no list of numbers of blocks, such as 1000,10000")
    return [int(part) for part in parts]


def num_blocks_of(text: str) -> int:
    """Blocks of the one pool that is simulated in time; 0 when the option was not given."""
    numbers = capacities(text)
    if len(numbers) > 1 or numbers == [0]:
        raise ConfigError(f"capacity={text}: this mode takes one number of blocks, 1 or more")
    return numbers[0] if numbers else 0
