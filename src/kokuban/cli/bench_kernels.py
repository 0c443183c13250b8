"""`kokuban bench kernels`: each kernel right or wrong, how long it takes, and how far it is from
what bounds it."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import click

from kokuban.cli import options
from kokuban.cli.commands import Option
from kokuban.core.env import max_isa, omp_num_threads
from kokuban.core.errors import ConfigError

if TYPE_CHECKING:
    from kokuban.bench.kernel_bench import KernelResult
    from kokuban.bench.kernel_case import Case, Setup

TABLE_WIDTH = 120

Only = Annotated[
    str,
    Option(help="Words, by commas: cases with one of them in their name, like linear,Q4_K."),
]
Quick = Annotated[
    bool, Option("--quick", help="Small and few: whether all are right, times mean little.")
]
RoundCount = Annotated[int, Option(least=0, help="Rounds that are timed. 0: as many as usual.")]


def kernels(
    only: Only = "",
    quick: Quick = False,
    rounds: RoundCount = 0,
    threads: options.Threads = 0,
    json_file: options.JsonFile = None,
) -> None:
    """Check each kernel against a reference, then time it beside what bounds it."""
    from kokuban.bench.facts import facts, write_json
    from kokuban.bench.kernel_bench import FORMULAS

    setup = _setup(threads, quick)
    cases = _chosen(setup, only)
    found = list(_run(setup, cases, rounds))
    wrong = [result for result in found if not result.right]
    _print(setup, found, wrong)
    if json_file is not None:
        document = {
            "facts": facts(),
            "settings": {"only": only, "quick": quick, "threads": setup.threads},
            "formulas": FORMULAS,
            "figures": [result.as_json() for result in found],
        }
        write_json(json_file, document)
    if wrong:
        click.echo(f"kokuban: {len(wrong)} of {len(found)} kernels are wrong", err=True)
        raise click.exceptions.Exit(1)


def _setup(threads: int, quick: bool) -> "Setup":
    from kokuban.bench.kernel_case import Setup
    from kokuban.kernels.native import make_threads
    from kokuban.observe.machine import num_threads

    count = num_threads(threads, omp_num_threads=omp_num_threads())
    return Setup(pool=make_threads(count), threads=count, isa_cap=max_isa(), quick=quick)


def _chosen(setup: "Setup", only: str) -> "list[Case]":
    """Raises `ConfigError` when no case is left."""
    from kokuban.bench.kernel_bench import all_cases

    words = tuple(word.strip() for word in only.split(",") if word.strip())
    cases = [case for case in all_cases(setup) if case.matches(words)]
    if not cases:
        raise ConfigError(
            f"--only {only} leaves no kernel; there are linear, attention, rms_norm, rope, gated, "
            f"kv_write and sampling, weight types such as Q4_K, KV dtypes, and rows such as "
            f"'rows 32'"
        )
    return cases


def _run(setup: "Setup", cases: "list[Case]", rounds: int) -> "Iterator[KernelResult]":
    from kokuban.bench import kernel_bench
    from kokuban.bench.probes import NativeProbes
    from kokuban.cli.progress import count_bar

    quick = setup.quick
    bench = kernel_bench.KernelBench(
        NativeProbes(isa_cap=setup.isa_cap, pools={setup.threads: setup.pool}),
        rounds=rounds or (kernel_bench.QUICK_ROUNDS if quick else kernel_bench.ROUNDS),
        round_s=kernel_bench.QUICK_ROUND_S if quick else kernel_bench.ROUND_S,
    )
    num_cases = len(cases)
    cases.reverse()
    with count_bar("kernels", num_cases) as advance:
        while cases:  # Popped, so that the weights of cases that are done can go.
            result = bench.run_one(cases.pop())
            advance(result.title, failed=not result.right)
            yield result


def _print(
    setup: "Setup", found: "Sequence[KernelResult]", wrong: "Sequence[KernelResult]"
) -> None:
    from rich.console import Console

    from kokuban.kernels.native import isa_name
    from kokuban.observe.machine import cpu_name

    console = Console(highlight=False, soft_wrap=True)
    # A table that is piped has no width to keep to.
    console.width = max(console.width, TABLE_WIDTH)
    console.print(f"{cpu_name()}, {isa_name(setup.isa_cap)}, {setup.threads} threads")
    console.print(_table(found))
    console.print("fraction: ideal time / time, limits measured in the same rounds", style="dim")
    for result in wrong:
        console.print(f"WRONG {result.title}: {_complaint(result)}", markup=False)


def _complaint(result: "KernelResult") -> str:
    if result.verdict is None:
        return result.failure or ""
    error, limit, measure = result.verdict
    return f"error {error:.3g} {measure}, limit {limit:.3g}"


def _table(found: "Sequence[KernelResult]") -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in ("kernel", "error", "µs", "±", "GB/s", "Gop/s", "bound", "limit", "fraction"):
        table.add_column(
            name, justify="left" if name in ("kernel", "bound") else "right", no_wrap=True
        )
    for result in found:
        table.add_row(result.title, *_cells(result))
    return table


def _cells(result: "KernelResult") -> list[str]:
    error = "-" if result.verdict is None else f"{result.verdict.error:.1e}"
    speed = result.speed
    if speed is None:
        return [error, "WRONG", *[""] * 6]
    return [
        error,
        f"{speed.seconds * 1e6:,.1f}",
        f"{speed.spread:.0%}",
        f"{speed.bytes_per_s / 1e9:.1f}",
        f"{speed.ops_per_s / 1e9:.0f}" if speed.ops_per_s else "",
        speed.limit,
        f"{speed.limit_per_s / 1e9:.0f}",
        f"{speed.fraction:.0%}",
    ]
