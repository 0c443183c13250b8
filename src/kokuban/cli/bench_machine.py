"""`kokuban bench machine`: what this machine can do, measured once and kept for the cost model."""

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from kokuban.cli import options
from kokuban.core.env import cache_dir, max_isa, omp_num_threads
from kokuban.core.errors import ConfigError

if TYPE_CHECKING:
    from kokuban.plan.machine import MachineConstants


def machine(threads: options.Threads = 0) -> None:
    """Measure this machine for the cost model: some seconds, once."""
    from kokuban.kernels.native import make_threads
    from kokuban.plan.machine import save_constants
    from kokuban.runner.measure import MachineBench

    cpu, isa, count = this_machine(threads)
    directory = cache_dir()
    bench = MachineBench(
        pool=make_threads(count),
        threads=count,
        isa_cap=max_isa(),
        cpu=cpu,
        isa=isa,
        directory=directory,
    )
    try:
        constants = _with_overheads(bench.measure(_tell))
        path = save_constants(directory, constants)
    except OSError as error:
        raise ConfigError(
            f"{directory} cannot be written ({error.strerror or error}); make room there, or "
            f"choose another place with KOKUBAN_CACHE"
        ) from error
    _print(constants)
    typer.echo(f"kept in {path}")


def _tell(what: str) -> None:
    typer.echo(f"measuring {what} …", err=True)


def _with_overheads(constants: "MachineConstants") -> "MachineConstants":
    """Add what the engine's own bookkeeping takes."""
    from kokuban.simulate.overhead import measure_overheads

    _tell("bookkeeping")
    overheads = measure_overheads()
    return replace(
        constants,
        step_overhead_s=overheads.step_s,
        row_overhead_s=overheads.row_s,
        token_overhead_s=overheads.token_s,
    )


def this_machine(threads: int) -> tuple[str, str, int]:
    """The CPU's name, the instruction set in use and the number of threads: what constants are
    kept under.

    Args:
        threads: the operator's number; 0: what this process may use.
    """
    from kokuban.kernels.native import isa_name
    from kokuban.observe.machine import cpu_name, num_threads

    count = num_threads(threads, omp_num_threads=omp_num_threads())
    return cpu_name(), isa_name(max_isa()), count


def _print(constants: "MachineConstants") -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    for row in describe(constants):
        table.add_row(*row)
    console = Console(highlight=False)
    console.print(f"{constants.cpu}, {constants.isa}, {constants.threads} threads")
    console.print(table)


def describe(constants: "MachineConstants") -> Iterator[tuple[str, str, str]]:
    """Rows of name, number and unit."""
    rates = (
        ("products, quantised weights, many rows", constants.int8_flops_per_s, "GFLOP/s"),
        ("products, 16- and 32-bit weights, many rows", constants.float_flops_per_s, "GFLOP/s"),
        ("attention, prompt", constants.attention_flops_per_s, "GFLOP/s"),
        ("weights read, one row", constants.weight_bytes_per_s, "GB/s"),
        ("K and V read, one row", constants.kv_bytes_per_s, "GB/s"),
        ("values read and written", constants.value_bytes_per_s, "GB/s"),
        ("copies in memory", constants.copy_bytes_per_s, "GB/s"),
        ("disk, read", constants.disk_read_bytes_per_s, "GB/s"),
        ("disk, write", constants.disk_write_bytes_per_s, "GB/s"),
    )
    for name, value, unit in rates:
        yield name, f"{value / 1e9:.2f}", unit
    times = (
        ("disk, before the first byte", constants.disk_latency_s),
        ("overhead of an operation (a guess)", constants.op_overhead_s),
        ("overhead of a step", constants.step_overhead_s),
        ("overhead of a sampled row", constants.row_overhead_s),
        ("overhead of a token", constants.token_overhead_s),
    )
    for name, value in times:
        yield name, f"{value * 1e6:.2f}", "µs"
