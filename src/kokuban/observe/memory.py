"""Memory of a process that lives long: what is collected, and what the C heap gives back."""

import ctypes
import gc

GC_THRESHOLDS = (5_000, 20, 100)
"""The index of a pool of 1M tokens is some 300,000 objects that live on: Python's own thresholds
walk all of them, for a tenth of a second in a step, whenever a quarter of them is new."""

# Names and numbers of glibc's <malloc.h>.
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
M_ARENA_MAX = -8

HEAP_OPTIONS = {M_ARENA_MAX: 2, M_MMAP_THRESHOLD: 2**20, M_TRIM_THRESHOLD: 4 * 2**20}
"""By itself glibc raises its threshold to 32 MiB after a few large bodies, and puts the next ones
among the small blocks of some ten arenas, which then cannot be given back: memory grows for as
long as requests differ. With these numbers what is large goes back as soon as it is free."""


def settle_garbage() -> None:
    """Begin to collect when a process is built: what is there now lives to its end."""
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    gc.enable()


def settle_heap() -> bool:
    """Have the C heap give back what is free. To be called before there are threads.

    Returns:
        False where the C library is none of GNU's; its heap is then left as it is.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # musl, macOS, Windows
        return False
    return all(mallopt(option, value) == 1 for option, value in HEAP_OPTIONS.items())
