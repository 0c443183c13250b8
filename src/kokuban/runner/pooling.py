"""From the hidden states of a prompt to one vector.

The sum of a mean is kept in float64 and grows by one row after the other, in the order of the
prompt: no bit of it depends on chunks, company or threads.
"""

import numpy as np
from numpy.typing import NDArray

from kokuban.core.pooling import PoolingParams

NOT_FINITE = "the hidden states of this prompt are not finite; the vector would be no vector"


class PromptPool:
    """Belongs to the runner's row of one request: preemption drops it, and it begins again.

    Args:
        params: what the client asked for.
        num_tokens: of the prompt.
    """

    def __init__(self, params: PoolingParams, num_tokens: int) -> None:
        self._params = params
        self._num_wanted = num_tokens if params.needs_every_row else 1
        self._num_rows = 0
        self._sum: NDArray[np.float64] | None = None

    def add(self, row: NDArray[np.float32]) -> None:
        """Take the next of the prompt's hidden states, or its last one."""
        assert not self.is_complete, "more hidden states than the prompt has tokens"
        if self._sum is None:
            self._sum = row.astype(np.float64)
        else:
            self._sum += row
        self._num_rows += 1

    @property
    def is_complete(self) -> bool:
        return self._num_rows == self._num_wanted

    def vector(self) -> bytes | str:
        """The vector, float32 in little-endian order, or why there is none."""
        assert self._sum is not None, "nothing of the prompt is computed"
        assert self.is_complete, "some of the prompt is not computed"
        vector = (self._sum / self._num_rows)[: self._params.dimensions]
        if not np.isfinite(vector).all():
            return NOT_FINITE
        if self._params.normalize:
            # Not linalg.norm: how BLAS adds up depends on the machine.
            length = np.sqrt(np.square(vector).sum())
            vector /= length or 1.0
        return vector.astype("<f4").tobytes()
