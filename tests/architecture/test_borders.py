"""Rules of the house that no linter has: who may reach native code, and what an import costs."""

import ast
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src" / "kokuban"


def imported(path: Path) -> set[str]:
    """Names of all modules that a file imports, wherever the statement stands."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def test_native_code_is_reached_through_kernels_and_the_step_through_one_file() -> None:
    reaching = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if "kokuban._native" in imported(path)
    }

    allowed = {name for name in reaching if name.startswith("kernels/")} | {"runner/native.py"}
    assert reaching == allowed
    assert "kernels/linear.py" in reaching, "the test does not see imports any more"


def test_no_module_imports_torch() -> None:
    """It belongs to the GPU extra, whose place is not built yet."""
    guilty = [
        path.name
        for path in SOURCE.rglob("*.py")
        if any(name.split(".")[0] == "torch" for name in imported(path))
    ]

    assert guilty == []


def test_the_package_and_its_command_import_no_heavy_library() -> None:
    code = (
        "import sys, kokuban, kokuban.cli\n"
        "heavy = 'numpy', 'starlette', 'tokenizers', 'torch', 'huggingface_hub', 'jinja2'\n"
        "print([m for m in heavy if m in sys.modules])"
    )

    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )

    assert found.stdout.strip() == "[]"


def test_a_start_imports_nothing_that_only_later_requests_need() -> None:
    code = (
        "import sys, kokuban.cli, kokuban.engine.build, kokuban.server.run\n"
        "late = 'fastapi', 'rich', 'huggingface_hub', 'kokuban.server.description'\n"
        "print([m for m in late if m in sys.modules])"
    )

    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )

    assert found.stdout.strip() == "[]"
