"""Writes docs/bugbank.md: which test keeps which publicly known fault out of here.

Run:    python tools/make_bugbank_table.py [--check]
Reads:  ids such as `B54:` in the docstrings of tests and their modules.
Fails:  a test names an id that is not known, or (with --check) an entry has no test or the page is
        not what the tests give; then nothing is written.
"""

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "tools" / "bugbank.txt"
PAGE = ROOT / "docs" / "bugbank.md"
ID = re.compile(r"\bB\d{2,3}\b")

HEAD = """\
# Known faults of such servers, and the tests that keep them out

Faults that users of other engines have reported in public, in our words, each with the tests that
have its id in their docstrings. Made by `tools/make_bugbank_table.py`; the words stand in
`tools/bugbank.txt`.

| id | area | the fault | tests |
|---|---|---|---|
"""

Found = dict[str, list[str]]


class Entry(NamedTuple):
    """One fault."""

    id: str
    area: str
    fault: str
    reason: str = ""
    """Why it cannot occur here; "": it could."""


def entries() -> list[Entry]:
    """All of the list, in its order."""
    lines = [line for line in LIST.read_text().splitlines() if not line.startswith("#")]
    return [Entry(*(part.strip() for part in line.split(" | "))) for line in lines]


def named_tests() -> Iterator[tuple[str, str]]:
    """(id, test) for every id in a docstring; a module's id stands for the whole file."""
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        name = str(path.relative_to(ROOT))
        module = ast.parse(path.read_text())
        for found in ID.findall(ast.get_docstring(module) or ""):
            yield found, f"`{name}`"
        for node in ast.walk(module):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            for found in ID.findall(ast.get_docstring(node) or ""):
                yield found, f"`{name}`: {node.name.removeprefix('test_').replace('_', ' ')}"


def collect() -> Found:
    """The tests of each entry."""
    tests: Found = {entry.id: [] for entry in entries()}
    for name, test in named_tests():
        if name not in tests:
            raise SystemExit(f"{test} names {name}, which is no entry of {LIST.name}")
        if test not in tests[name]:
            tests[name].append(test)
    return tests


def page(tests: Found) -> str:
    """The whole page."""
    rows = [
        f"| {entry.id} | {entry.area} | {entry.fault} | {_cell(entry, tests[entry.id])} |"
        for entry in entries()
    ]
    return HEAD + "\n".join(rows) + "\n"


def _cell(entry: Entry, tests: list[str]) -> str:
    return "<br>".join(tests) or f"none: {entry.reason or 'not yet'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only compare")
    arguments = parser.parse_args()
    tests = collect()
    missing = [entry.id for entry in entries() if not (tests[entry.id] or entry.reason)]
    print(f"{sum(map(bool, tests.values()))} of {len(tests)} entries have tests")
    if missing:
        print("without a test:", ", ".join(missing))
    text = page(tests)
    if not arguments.check:
        PAGE.write_text(text)
    elif missing or not PAGE.exists() or PAGE.read_text() != text:
        print("docs/bugbank.md is not what the tests give; run tools/make_bugbank_table.py")
        sys.exit(1)


if __name__ == "__main__":
    main()
