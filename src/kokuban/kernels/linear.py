"""out = x · Wᵀ for W in every storage type, packed once and kept in its own bit width.

Owns: `PackedMatrix`, a weight matrix in the layout of the kernels (csrc/kernels/linear/layout.h).
The contract of the product, its order of additions included, is csrc/kernels/linear/linear.h.
Inputs of quantised weights are themselves rounded to int8 in groups of 32 elements; `quantize_rows`
shows how. All instruction sets, numbers of rows and threads give the same bits.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import kokuban._native as _native
from kokuban.core.errors import ModelError

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]

GROUP = 32
"""Elements of an input row that share one scale."""

TILE_ROWS = 16
"""Rows of W that lie interleaved; the last tile is filled up with rows of zeros."""

_BLOCKS = {
    "F32": (0, 1, 4),
    "F16": (1, 1, 2),
    "BF16": (30, 1, 2),
    "Q4_0": (2, 32, 18),
    "Q4_1": (3, 32, 20),
    "Q5_0": (6, 32, 22),
    "Q5_1": (7, 32, 24),
    "Q8_0": (8, 32, 34),
    "Q2_K": (10, 256, 84),
    "Q3_K": (11, 256, 110),
    "Q4_K": (12, 256, 144),
    "Q5_K": (13, 256, 176),
    "Q6_K": (14, 256, 210),
}
"""For each type: its number in GGUF, elements of a block, bytes of a block."""

WEIGHT_TYPES = tuple(_BLOCKS)
"""Names of all types that `pack_matrix` takes, as GGUF spells them."""


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """A weight matrix [n, k] in the kernels' layout; immutable. Made by `pack_matrix`."""

    weight_type: str
    n: int
    """Outputs: rows of W."""

    k: int
    """Inputs: columns of W."""

    native: Any
    """The `_native.PackedMatrix` that owns the memory."""

    @property
    def num_bytes(self) -> int:
        """Memory of the packed form: at most 1.06 × the file's, where n is a multiple of 16."""
        return int(self.native.nbytes)


def pack_matrix(
    raw: Bytes,
    weight_type: str,
    n: int,
    k: int,
    *,
    name: str = "weight",
    pool: Any = None,
    consumed: Callable[[int], None] | None = None,
) -> PackedMatrix:
    """Pack a weight matrix for `linear`. Codes and scales are moved, never rounded.

    Args:
        raw: [bytes] uint8: n rows of k elements as GGUF stores them, which for F32, F16 and BF16
            is plain little-endian row-major. Read once; may be a mapped file at any alignment.
        weight_type: one of `WEIGHT_TYPES`.
        name: of the tensor, for messages.
        pool: a `_native.ThreadPool` to spread the work over.
        consumed: told after some megabytes each how many bytes of `raw` are read and not needed
            any more, so that pages of a mapped file can be given back.

    Raises:
        ModelError: the type is unknown, k is no whole number of blocks, or raw has another length.
    """
    number = check_stored_matrix(raw, weight_type, n, k, name)
    return PackedMatrix(weight_type, n, k, _native.pack(number, raw, n, k, pool, consumed))


def unpack_matrix(matrix: PackedMatrix) -> Floats:
    """[n, k]: the weights as float32, exactly as `kernels.dequantize` gives them from the file."""
    out = np.empty((matrix.n, matrix.k), np.float32)
    _native.unpack(matrix.native, out)
    return out


def linear(
    matrix: PackedMatrix,
    x: Floats,
    *,
    out: Floats | None = None,
    bias: Floats | None = None,
    add: bool = False,
    isa_cap: int = -1,
    pool: Any = None,
) -> Floats:
    """Return x · Wᵀ (+ bias), or out + that when `add` is set.

    A row of x that holds a NaN or an infinity gives a row without any finite number where W is
    quantised; other rows do not notice.

    Args:
        x: [T, k], columns side by side, any distance between rows.
        out: [T, n], written in place, of the same kind as x: a range of columns of a wider
            matrix will do. Made here when None.
        bias: [n].
        add: keep what `out` holds and add to it (a residual connection).
        isa_cap: index into `core.env.ISA_LEVELS` of the best instruction set to use; -1: the
            machine's best.
        pool: a `_native.ThreadPool`; None computes on the calling thread.

    Raises:
        ValueError: shapes or dtypes do not fit.
    """
    if x.ndim != 2 or x.shape[1] != matrix.k:
        raise ValueError(f"x has shape {x.shape}; this weight takes [rows, {matrix.k}]")
    if out is None:
        if add:
            raise ValueError("add=True needs out: the matrix to add to")
        out = np.empty((x.shape[0], matrix.n), np.float32)
    if out.shape != (x.shape[0], matrix.n):
        raise ValueError(f"out has shape {out.shape}; it must be {(x.shape[0], matrix.n)}")
    if bias is not None and bias.shape != (matrix.n,):
        raise ValueError(f"bias has shape {bias.shape}; it must be {(matrix.n,)}")
    for name, array in (("x", x), ("out", out), ("bias", bias)):
        if array is not None and array.dtype != np.float32:
            raise ValueError(f"{name} is {array.dtype}; it must be float32")
    _native.linear(matrix.native, x, out, bias, add, isa_cap, pool)
    return out


def quantize_rows(
    x: Floats, isa_cap: int = -1
) -> tuple[NDArray[np.int8], Floats, NDArray[np.int32]]:
    """Round x [T, k] to int8 as `linear` does for quantised weights; k is a multiple of 32.

    Returns:
        codes [T, k] int8, scales [T, k / 32] with x ≈ codes * scales, and the sums of each 16
        codes [T, k / 16] int32. The scale of a group that is not finite is NaN.
    """
    rows, k = x.shape
    if k % GROUP:
        raise ValueError(f"x has {k} columns; they must be a multiple of {GROUP}")
    codes = np.empty((rows, k), np.int8)
    scales = np.empty((rows, k // GROUP), np.float32)
    sums = np.empty((rows, 2 * k // GROUP), np.int32)
    _native.quantize_rows(x, codes, scales, sums, isa_cap)
    return codes, scales, sums


def check_stored_matrix(raw: Bytes, weight_type: str, n: int, k: int, name: str) -> int:
    """Return the type's number in GGUF, or raise ModelError: raw does not hold such an [n, k]."""
    if weight_type not in _BLOCKS:
        raise ModelError(
            f"{name}: no kernel takes the type {weight_type}; there are {', '.join(WEIGHT_TYPES)}"
        )
    number, elements, size = _BLOCKS[weight_type]
    if n < 1 or k < 1 or k % elements:
        raise ModelError(
            f"{name}: {weight_type} stores rows in blocks of {elements} elements, which the shape "
            f"[{n}, {k}] does not allow"
        )
    expected = n * (k // elements) * size
    if raw.nbytes != expected:
        raise ModelError(
            f"{name}: {weight_type} [{n}, {k}] takes {expected} bytes, but there are {raw.nbytes}"
        )
    return number
