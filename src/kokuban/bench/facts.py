"""Where and with what something was measured: what every JSON of a benchmark begins with."""

import json
import os
import platform
import shlex
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from kokuban import __version__
from kokuban.core.env import max_isa
from kokuban.core.errors import ConfigError
from kokuban.kernels.native import isa_name
from kokuban.observe.machine import allowed_cpus, available_memory_bytes, cpu_flags, cpu_name

_PACKAGES = ("numpy", "starlette", "uvicorn", "tokenizers", "msgspec")


def facts(command: list[str] | None = None) -> dict[str, Any]:
    """Versions, machine and command line.

    Args:
        command: its words; None: those of this process.
    """
    words = sys.argv if command is None else command
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["kokuban", *words[1:]]),
        "kokuban": __version__,
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "system": platform.platform(),
        "cpu": cpu_name(),
        "cpu_flags": " ".join(cpu_flags()),
        "cpus": allowed_cpus(),
        "free_memory_bytes": available_memory_bytes(),
        "isa": isa_name(max_isa()),
        "load_average": list(os.getloadavg()),
    }


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Write a document.

    Raises:
        ConfigError: the file cannot be written.
    """
    try:
        path.write_text(json.dumps(document, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--json {path} cannot be written: {error.strerror or error}") from error


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
