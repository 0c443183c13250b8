"""A plugin of pytest that writes the reason of each failure into `why.txt`, as soon as it is known.

Wants `--tb native`. One line for each: the test, what it was at, what went wrong.
"""

from pathlib import Path

import pytest

WIDTH = 300


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        at, error = _reason(report.longreprtext.splitlines(), report.nodeid.partition("::")[0])
        with Path("why.txt").open("a") as file:
            file.write(f"{report.nodeid} | {at[:WIDTH]} | {error[:WIDTH]}\n")


def _reason(lines: list[str], test_file: str) -> tuple[str, str]:
    """The last line of the test that was run, and the error."""
    at = error = ""
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if line.startswith("  File ") and test_file in line:
            at = following.strip()
        elif line and not line.startswith((" ", "Traceback")):
            error = error or line
        elif line.startswith("Traceback"):
            error = ""
    return at, error
