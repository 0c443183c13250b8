"""Bars on standard error for what takes longer than a moment."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Report(Protocol):
    """Called with what is done, bytes done and bytes in all."""

    def __call__(self, what: str, done_bytes: int, total_bytes: int) -> None: ...


@contextmanager
def progress_bars() -> Iterator[Report]:
    """Bars that vanish at the end; none where standard error is no terminal."""
    if not sys.stderr.isatty():  # Then `rich` need not be imported, which takes a while.
        yield lambda what, done_bytes, total_bytes: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    console = Console(stderr=True)
    bars = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    tasks = {}

    def report(what: str, done_bytes: int, total_bytes: int) -> None:
        if what not in tasks:
            tasks[what] = bars.add_task(what, total=total_bytes)
        bars.update(tasks[what], completed=done_bytes, total=total_bytes)

    with bars:
        yield report


class Advance(Protocol):
    """Called when one more is done."""

    def __call__(self, what_now: str = "", *, failed: bool = False) -> None: ...


@contextmanager
def count_bar(what: str, total: int) -> Iterator[Advance]:
    """A bar of things that are counted, with the failed ones; none where nobody looks.

    It is drawn twice a second: more would be work beside what is measured.
    """
    if not sys.stderr.isatty():
        yield lambda what_now="", *, failed=False: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as Remaining

    console = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        Remaining(),
        console=console,
        transient=True,
        refresh_per_second=2,
        disable=not console.is_terminal,
    )
    task = bar.add_task(what, total=total)
    num_failed = 0

    def advance(what_now: str = "", *, failed: bool = False) -> None:
        nonlocal num_failed
        num_failed += failed
        text = f"{what} ({num_failed} failed)" if num_failed else what_now or what
        bar.update(task, advance=1, description=text)

    with bar:
        yield advance
