"""Operations in which each output element depends on one element of each input.

The contract of each stands in csrc/kernels/elementwise/elementwise.h. All take float32 matrices
whose rows may lie apart (a range of columns of a wider one), compute rows `rows[0]` up to `rows[1]`
of the output (None: all), and give the same bits on every instruction set; `isa_cap` is an index
into `core.env.ISA_LEVELS`, -1 for the best.
"""

from typing import Literal

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

_KINDS = {"silu": 0, "gelu_tanh": 1, "relu": 2}


def add(
    a: Floats, b: Floats, out: Floats, *, rows: tuple[int, int] | None = None, isa_cap: int = -1
) -> None:
    """out = a + b. All [T, cols]; out may be a or b."""
    check_matrix("out", out, written=True)
    check_matrix("a", a, rows=out.shape[0], cols=out.shape[1])
    check_matrix("b", b, rows=out.shape[0], cols=out.shape[1])
    _native.add(a, b, out, *row_range(rows, out.shape[0]), isa_cap)


def gated_activation(
    kind: Literal["silu", "gelu_tanh", "relu"],
    gate: Floats,
    up: Floats,
    out: Floats,
    *,
    rows: tuple[int, int] | None = None,
    isa_cap: int = -1,
) -> None:
    """out = activation(gate) * up. All [T, F]; out may be gate or up.

    silu is x / (1 + e^-x); gelu_tanh is x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x³))); relu is
    max(x, 0).
    """
    if kind not in _KINDS:
        raise ValueError(f"kind={kind!r} is none of {', '.join(_KINDS)}")
    check_matrix("out", out, written=True)
    check_matrix("gate", gate, rows=out.shape[0], cols=out.shape[1])
    check_matrix("up", up, rows=out.shape[0], cols=out.shape[1])
    _native.gated(_KINDS[kind], gate, up, out, *row_range(rows, out.shape[0]), isa_cap)


def softcap(
    x: Floats, cap: float, *, rows: tuple[int, int] | None = None, isa_cap: int = -1
) -> None:
    """x = cap * tanh(x / cap), in place; cap > 0."""
    if not cap > 0:
        raise ValueError(f"cap={cap} is not above 0")
    check_matrix("x", x, written=True)
    _native.softcap(x, cap, *row_range(rows, x.shape[0]), isa_cap)


def take_rows(
    x: Floats,
    indices: Ints,
    out: Floats,
    *,
    rows: tuple[int, int] | None = None,
    isa_cap: int = -1,
) -> None:
    """out[r] = x[indices[r]]. indices is [R] int32; out must not overlap x."""
    check_matrix("out", out, written=True)
    check_matrix("x", x, cols=out.shape[1])
    check_vector("indices", indices, np.int32, out.shape[0])
    check_below("indices", indices, x.shape[0])
    _native.take_rows(x, indices, out, *row_range(rows, out.shape[0]), isa_cap)
