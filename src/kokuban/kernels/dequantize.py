"""Rows of a stored weight matrix as float32: the embedding lookup, out of the mapped file.

The contract is csrc/kernels/dequantize/dequantize.h, the meaning of the formats block.h beside it.
"""

import numpy as np
from numpy.typing import NDArray

import kokuban._native as _native
from kokuban.kernels.linear import Bytes, Floats, check_stored_matrix


def dequantize_rows(
    raw: Bytes,
    weight_type: str,
    shape: tuple[int, int],
    ids: NDArray[np.int64],
    *,
    scale: float = 1.0,
    out: Floats | None = None,
) -> Floats:
    """Return out[t] = scale * W[ids[t]].

    Args:
        raw: [bytes] uint8: the whole matrix as GGUF stores it; only the rows asked for are read.
        weight_type: one of `kernels.linear.WEIGHT_TYPES`.
        shape: (n, k) of the matrix.
        ids: [T] rows, each at least 0 and below n.
        out: [T, k], written in place; made here when None.

    Raises:
        ModelError: raw does not hold such a matrix.
        ValueError: an id lies outside the matrix, or out has another shape.
    """
    n, k = shape
    number = check_stored_matrix(raw, weight_type, n, k, "weight")
    if ids.size and not (ids.min() >= 0 and ids.max() < n):
        raise ValueError(f"row ids from {ids.min()} to {ids.max()} in a matrix of {n} rows")
    if out is None:
        out = np.empty((len(ids), k), np.float32)
    if out.shape != (len(ids), k) or out.dtype != np.float32:
        raise ValueError(f"out is {out.dtype}{out.shape}; it must be float32{(len(ids), k)}")
    _native.dequantize_rows(number, raw, k, np.ascontiguousarray(ids, np.int64), scale, out)
    return out
