"""House rule on size: a file fits in a head, a function on a screen.

Run:    python tools/check_size.py
Fails:  a Python file above 400 lines or a function above 40, in the package, the benchmarks and the
        tools; a C++ file above 600.
Counts lines as they stand, docstrings and blank lines included (functions: without the docstring).
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("src", "benchmarks", "tools")
MAX_PYTHON_LINES, MAX_FUNCTION_LINES, MAX_CPP_LINES = 400, 40, 600


def function_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function, signature included, docstring not."""
    end = node.end_lineno or node.lineno
    lines = end - node.lineno + 1
    first = node.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        lines -= (first.end_lineno or first.lineno) - first.lineno + 1
    return lines


def problems() -> Iterator[str]:
    """Every breach of the rule, as a line for the terminal."""
    for path in sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")):
        text = path.read_text()
        name = path.relative_to(ROOT)
        if (count := len(text.splitlines())) > MAX_PYTHON_LINES:
            yield f"{name}: {count} lines, limit {MAX_PYTHON_LINES}"
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                count = function_lines(node)
                if count > MAX_FUNCTION_LINES:
                    yield f"{name}:{node.lineno}: {node.name} has {count} lines, limit 40"
    for path in sorted((ROOT / "csrc").rglob("*")):
        if path.suffix in (".h", ".cpp"):
            count = len(path.read_text().splitlines())
            if count > MAX_CPP_LINES:
                yield f"{path.relative_to(ROOT)}: {count} lines, limit {MAX_CPP_LINES}"


def main() -> None:
    found = list(problems())
    print("\n".join(found) or "sizes are within the house rule")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
