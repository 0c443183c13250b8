"""The native threads, and which instruction set this machine's kernels use."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kokuban import _native
from kokuban.core.env import ISA_LEVELS
from kokuban.core.errors import ConfigError


def make_threads(count: int) -> Any:
    """A native thread pool of `count` workers, of which the calling thread is one.

    Raises:
        ConfigError: the system does not allow so many threads.
    """
    try:
        return _native.ThreadPool(count)
    except RuntimeError as error:
        raise ConfigError(
            f"{count} threads cannot be had ({error}); use fewer --threads"
        ) from error


def isa_name(cap: int = -1) -> str:
    """The best of `ISA_LEVELS` that this machine can run, at most the one with index `cap`."""
    return ISA_LEVELS[_native.isa_level(cap)]


def populate(memory: NDArray[np.uint8]) -> bool:
    """Ask the system for the pages of [bytes] uint8 memory that starts at a page, and wait.

    Others run meanwhile: the interpreter lock is not held. What was written is not changed.

    Returns:
        False where the system cannot do that; pages then come when they are first written.
    """
    return bool(_native.populate(memory))
