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
