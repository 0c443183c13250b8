"""The only reader of the environment. Each name is for what cannot be an option."""

import os
from pathlib import Path

from kokuban.core.errors import ConfigError

ISA_LEVELS = ("scalar", "avx2", "avxvnni", "avx512", "avx512vnni")
"""Instruction sets that kernels are written for, worst first. The index is the native level."""


def max_isa() -> int:
    """Index into `ISA_LEVELS` that KOKUBAN_MAX_ISA caps kernels to; the best one by default."""
    name = os.environ.get("KOKUBAN_MAX_ISA", ISA_LEVELS[-1])
    if name not in ISA_LEVELS:
        raise ConfigError(f"KOKUBAN_MAX_ISA={name} is none of {', '.join(ISA_LEVELS)}")
    return ISA_LEVELS.index(name)


def cache_dir() -> Path:
    """The one directory for downloads and measurements: KOKUBAN_CACHE, or the XDG default."""
    if own := os.environ.get("KOKUBAN_CACHE"):
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "kokuban"


def omp_num_threads() -> int | None:
    """OMP_NUM_THREADS, which operators set for every numeric program; None when it is no number."""
    value = os.environ.get("OMP_NUM_THREADS", "")
    return int(value) if value.isdecimal() and int(value) > 0 else None


def log_level() -> str:
    """The logging level that KOKUBAN_LOG names; INFO by default."""
    level = os.environ.get("KOKUBAN_LOG", "INFO").upper()
    if level not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        raise ConfigError(f"KOKUBAN_LOG={level} is none of DEBUG, INFO, WARNING, ERROR")
    return level


def debug() -> bool:
    """Whether KOKUBAN_DEBUG asks the engine to check itself: slower, and louder when wrong."""
    return os.environ.get("KOKUBAN_DEBUG", "") not in ("", "0")


def for_child(**changes: str) -> dict[str, str]:
    """This process's environment for a child process, with some variables set."""
    return {**os.environ, **changes}
