"""The interpreter's garbage collector in a process that holds much for long."""

import gc

GC_THRESHOLDS = (5_000, 20, 100)
"""The index of a pool of 1M tokens is some 300,000 objects that live on: Python's own thresholds
walk all of them, for a tenth of a second in a step, whenever a quarter of them is new."""


def settle_garbage() -> None:
    """Begin to collect when a process is built: what is there now lives to its end."""
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    gc.enable()
