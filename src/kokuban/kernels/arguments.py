"""What the faces of the kernels check: native code trusts its arguments."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]


def check_matrix(
    name: str,
    x: Floats,
    *,
    rows: int | None = None,
    cols: int | None = None,
    written: bool = False,
) -> None:
    """Require a float32 matrix with contiguous rows. Rows may lie apart: a range of columns is one.

    Raises:
        ValueError: names the argument, what it is and what it must be.
    """
    if x.dtype != np.float32 or x.ndim != 2:
        raise ValueError(f"{name} is {x.dtype} with {x.ndim} dimensions, not a float32 matrix")
    if x.shape[1] == 0 or (x.shape[1] > 1 and x.strides[1] != 4):
        raise ValueError(f"{name}: a row of {x.shape[1]} columns is empty or not contiguous")
    if x.shape[0] > 1 and (x.strides[0] % 4 or x.strides[0] < 4 * x.shape[1]):
        raise ValueError(f"{name}: rows {x.strides[0]} bytes apart overlap or are not aligned")
    if rows is not None and x.shape[0] != rows:
        raise ValueError(f"{name} has {x.shape[0]} rows, not {rows}")
    if cols is not None and x.shape[1] != cols:
        raise ValueError(f"{name} has {x.shape[1]} columns, not {cols}")
    if written and not x.flags.writeable:
        raise ValueError(f"{name} is written, but the array is read-only")


def check_vector(
    name: str, x: NDArray[Any], dtype: type[np.generic], length: int | None = None
) -> None:
    """Require a contiguous vector of one dtype and, if given, one length.

    Raises:
        ValueError: names the argument, what it is and what it must be.
    """
    if x.dtype != np.dtype(dtype) or x.ndim != 1 or not x.flags.c_contiguous:
        raise ValueError(
            f"{name} is {x.dtype} with {x.ndim} dimensions, not a contiguous "
            f"{np.dtype(dtype).name} vector"
        )
    if length is not None and x.shape[0] != length:
        raise ValueError(f"{name} has {x.shape[0]} elements, not {length}")


def check_below(name: str, x: NDArray[Any], limit: int) -> None:
    """Require integers from 0 up to, but without, `limit`.

    Raises:
        ValueError: names the first value outside.
    """
    outside = (x < 0) | (x >= limit)
    if outside.any():
        at = int(outside.argmax())
        raise ValueError(f"{name}[{at}] = {x.flat[at]} is not from 0 to {limit - 1}")


def row_range(rows: tuple[int, int] | None, num_rows: int) -> tuple[int, int]:
    """The rows to compute; None means all.

    Raises:
        ValueError: the range leaves the matrix.
    """
    begin, end = (0, num_rows) if rows is None else rows
    if not 0 <= begin <= end <= num_rows:
        raise ValueError(f"rows {begin} to {end} are not within the {num_rows} of the output")
    return begin, end
