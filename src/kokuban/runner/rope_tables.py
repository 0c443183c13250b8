"""Cosines and sines of the rotary embedding, filled in as far as sequences have come.

A table has room for the whole context, but its pages are touched only when a position is needed.
It grows by runs of 1,024 positions from fixed absolute starts, so that an entry never depends on
the step that needed it first.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

RUN = 1024


class RopeTable:
    """[positions, 2, rotary_dim / 2] float32: for each position the cosines, then the sines."""

    def __init__(self, frequencies: Sequence[float], factor: float, max_positions: int) -> None:
        self._frequencies = np.array(frequencies, np.float64)
        self._factor = factor
        self._filled = 0
        self.array: NDArray[np.float32] = np.empty((max_positions, 2, len(frequencies)), np.float32)

    def fill(self, num_positions: int) -> None:
        """Make entries below `num_positions` ready."""
        while self._filled < min(num_positions, len(self.array)):
            end = min(self._filled + RUN, len(self.array))
            angles = np.arange(self._filled, end, dtype=np.float64)[:, None] * self._frequencies
            self.array[self._filled : end, 0] = np.cos(angles) * self._factor
            self.array[self._filled : end, 1] = np.sin(angles) * self._factor
            self._filled = end
