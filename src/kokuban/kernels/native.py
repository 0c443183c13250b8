"""The native threads, and which instruction set this machine's kernels use."""

from typing import Any

from kokuban import _native
from kokuban.core.env import ISA_LEVELS


def make_threads(count: int) -> Any:
    """A native thread pool of `count` workers, of which the calling thread is one."""
    return _native.ThreadPool(count)


def isa_name(cap: int = -1) -> str:
    """The best of `ISA_LEVELS` that this machine can run, at most the one with index `cap`."""
    return ISA_LEVELS[_native.isa_level(cap)]
