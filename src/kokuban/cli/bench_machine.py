"""`kokuban bench machine`: what this machine can do, measured once and kept for the cost model."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kokuban.cli import options
from kokuban.core.env import cache_dir, max_isa, omp_num_threads
from kokuban.core.errors import ConfigError

if TYPE_CHECKING:
    from kokuban.bench.machine import MachineReport
    from kokuban.bench.probes import Peaks
    from kokuban.plan.machine import MachineConstants


def machine(threads: options.Threads = 0, json_file: options.JsonFile = None) -> None:
    """Measure this machine: its limits, and what kernels reach, for the cost model."""
    from kokuban.bench.machine import measure_machine
    from kokuban.plan.machine import save_constants

    cpu, isa, count = this_machine(threads)
    directory = cache_dir()
    try:
        report = measure_machine(
            threads=count,
            isa_cap=max_isa(),
            cpu=cpu,
            isa=isa,
            directory=directory,
            progress=lambda what: click.echo(f"measuring {what} …", err=True),
        )
        path = save_constants(directory, report.constants)
    except OSError as error:
        raise ConfigError(
            f"{directory} cannot be written ({error.strerror or error}); make room there, or "
            f"choose another place with KOKUBAN_CACHE"
        ) from error
    _print(report)
    click.echo(f"kept in {path}")
    if json_file is not None:
        _write(json_file, report)


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


def _write(path: Path, report: "MachineReport") -> None:
    from kokuban.bench.facts import facts, write_json
    from kokuban.bench.machine import FORMULAS

    document = {
        "facts": facts(),
        "formulas": FORMULAS,
        "peaks": [asdict(each) for each in report.peaks],
        "constants": asdict(report.constants),
    }
    write_json(path, document)


def _print(report: "MachineReport") -> None:
    from rich.console import Console
    from rich.table import Table

    constants = report.constants
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    for row in describe(constants):
        table.add_row(*row)
    console = Console(highlight=False)
    console.print(f"{constants.cpu}, {constants.isa}, {constants.threads} threads")
    console.print(_peak_table(report.peaks))
    console.print()
    console.print(table)


def _peak_table(peaks: "Sequence[Peaks]") -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("limits")
    for each in peaks:
        table.add_column(f"{each.threads} thread{'s' * (each.threads > 1)}", justify="right")
    table.add_column("")
    for name, values, unit in describe_peaks(peaks):
        table.add_row(name, *values, unit)
    return table


def describe_peaks(peaks: "Sequence[Peaks]") -> Iterator[tuple[str, list[str], str]]:
    """Rows of name, a number for each number of threads, and unit."""
    yield "main memory, read", [f"{each.dram_bytes_per_s / 1e9:.1f}" for each in peaks], "GB/s"
    yield "last cache, read", [f"{each.cache_bytes_per_s / 1e9:.1f}" for each in peaks], "GB/s"
    names = {
        "fma": "float32 multiply-adds",
        "int8": "int8 dot products, narrow sums",
        "int8_widened": "int8 dot products, sums of 32 bits",
        "bf16": "bf16 dot products",
    }
    for probe, name in names.items():
        values = [each.ops_per_s[probe] for each in peaks]
        yield name, [f"{value / 1e9:.0f}" if value else "none" for value in values], "GFLOP/s"


def describe(constants: "MachineConstants") -> Iterator[tuple[str, str, str]]:
    """Rows of name, number and unit."""
    rates = (
        ("limit: main memory, read", constants.dram_read_bytes_per_s, "GB/s"),
        ("limit: last cache, read", constants.cache_read_bytes_per_s, "GB/s"),
        ("limit: float32 multiply-adds", constants.fp32_peak_flops_per_s, "GFLOP/s"),
        ("limit: int8 dot products", constants.int8_peak_flops_per_s, "GFLOP/s"),
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
