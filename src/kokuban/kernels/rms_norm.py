"""RMS norm over runs of columns. The contract stands in csrc/kernels/rms_norm/rms_norm.h."""

import numpy as np

from kokuban import _native
from kokuban.kernels.arguments import Floats, check_matrix, check_vector, row_range


def rms_norm(
    x: Floats,
    weight: Floats,
    out: Floats,
    *,
    eps: float,
    rows: tuple[int, int] | None = None,
    isa_cap: int = -1,
) -> None:
    """out = x / sqrt(mean(x²) + eps) * weight over each run of columns as long as `weight`.

    With the weight as long as a row this is the norm of the row; with a weight of head_dim it is
    the norm of each head.

    Args:
        x, out: [T, cols] float32, rows may lie apart; cols a multiple of the weight's length. out
            may be x.
        weight: [dim] float32.
        rows: rows of the output to compute; None: all.
        isa_cap: index into `core.env.ISA_LEVELS`; -1: the best. The bits are the same.

    Source: Zhang and Sennrich 2019, eq. 4.
    """
    check_matrix("out", out, written=True)
    check_matrix("x", x, rows=out.shape[0], cols=out.shape[1])
    check_vector("weight", weight, np.float32)
    if weight.shape[0] == 0 or out.shape[1] % weight.shape[0]:
        raise ValueError(
            f"{out.shape[1]} columns are no multiple of the weight's {weight.shape[0]} elements"
        )
    _native.rms_norm(x, weight, eps, out, *row_range(rows, out.shape[0]), isa_cap)
