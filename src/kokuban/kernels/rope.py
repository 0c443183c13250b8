"""Rotary position embedding. The contract stands in csrc/kernels/rope/rope.h."""

from collections.abc import Sequence

import numpy as np

from kokuban import _native
from kokuban.kernels.arguments import (
    Floats,
    Ints,
    check_below,
    check_matrix,
    check_vector,
    row_range,
)


def rope_table(
    inverse_frequencies: Sequence[float], num_positions: int, *, magnitude: float = 1.0
) -> Floats:
    """Cosines and sines of positions 0 up to num_positions: [num_positions, 2, rotary_dim / 2].

    Angles are products in float64, so that a long context loses nothing before the rounding of the
    result to float32.

    Args:
        inverse_frequencies: radians a position, one for each pair.
        magnitude: factor of all entries (the attention factor of yarn and longrope).
    """
    angles = np.arange(num_positions)[:, None] * np.asarray(inverse_frequencies, np.float64)
    table = np.empty((num_positions, 2, angles.shape[1]), np.float32)
    table[:, 0] = np.cos(angles) * magnitude
    table[:, 1] = np.sin(angles) * magnitude
    return table


def rope(
    x: Floats,
    table: Floats,
    positions: Ints,
    *,
    num_heads: int,
    interleaved: bool,
    rows: tuple[int, int] | None = None,
    isa_cap: int = -1,
) -> None:
    """Rotate the leading columns of each head, in place: (a, b) to (a cos - b sin, b cos + a sin).

    Args:
        x: [T, num_heads * head_dim] float32, rows may lie apart.
        table: [P, 2, rotary_dim / 2] float32: cosines, then sines; see `rope_table`.
        positions: [T] int32, the row of the table that each row of x takes.
        interleaved: pair i is columns (2 i, 2 i + 1) of a head; else (i, i + rotary_dim / 2).
        rows: rows of x to rotate; None: all.
        isa_cap: index into `core.env.ISA_LEVELS`; -1: the best. The bits are the same.

    Source: Su et al. 2021, section 3.4.2.
    """
    check_matrix("x", x, written=True)
    if num_heads < 1 or x.shape[1] % num_heads:
        raise ValueError(f"{x.shape[1]} columns cannot be {num_heads} heads")
    if table.dtype != np.float32 or table.ndim != 3 or table.shape[1] != 2:
        raise ValueError(
            f"table is {table.dtype} {table.shape}, not float32 [P, 2, rotary_dim / 2]"
        )
    head_dim, rotary_dim = x.shape[1] // num_heads, 2 * table.shape[2]
    if not 0 < rotary_dim <= head_dim or not table.flags.c_contiguous:
        raise ValueError(
            f"table rotates {rotary_dim} columns of heads of {head_dim}, or is not contiguous"
        )
    check_vector("positions", positions, np.int32, x.shape[0])
    check_below("positions", positions, table.shape[0])
    _native.rope(x, num_heads, table, interleaved, positions, *row_range(rows, x.shape[0]), isa_cap)
