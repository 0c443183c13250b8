"""Memory for rows of logits, laid out for the kernel that writes them.

A product writes sixteen columns of many rows at a time. Rows that begin in the middle of a cache
line make that two lines, and rows a multiple of 2 KiB apart (a vocabulary of 49,152) compete for
the same few lines of a cache.
"""

import numpy as np
from numpy.typing import NDArray

_LINE_FLOATS = 16
_CONFLICT_FLOATS = 512


def empty_logits(num_rows: int, vocab_size: int) -> NDArray[np.float32]:
    """[num_rows, at least vocab_size] float32, each row at a cache line, content undefined.

    Columns from `vocab_size` on stay undefined: give the samplers no more than that.
    """
    width = -(-vocab_size // _LINE_FLOATS) * _LINE_FLOATS
    if width % _CONFLICT_FLOATS == 0:
        width += _LINE_FLOATS
    memory = np.empty(num_rows * width + _LINE_FLOATS, np.float32)
    skip = -memory.ctypes.data // memory.itemsize % _LINE_FLOATS
    return memory[skip : skip + num_rows * width].reshape(num_rows, width)
