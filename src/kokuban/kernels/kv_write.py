"""Stores K and V of tokens in the KV pool.

The contract stands in csrc/kernels/kv_write/kv_write.h.
"""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kokuban import _native
from kokuban.core.config import KV_DTYPES, KvDtype
from kokuban.kernels.arguments import Floats, check_below, check_matrix, check_vector, row_range

Pool = NDArray[np.uint8]


class KvNumbers(Protocol):
    """The numbers that decide where a token lies: `kvcache.layout.KvLayout` has them."""

    @property
    def block_size(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def layers_per_group(self) -> int: ...
    @property
    def dtype(self) -> KvDtype: ...
    @property
    def bytes_per_block(self) -> int: ...


def layout_numbers(layout: KvNumbers) -> NDArray[np.int64]:
    """The layout as native code takes it."""
    return np.array(
        [
            layout.block_size,
            layout.num_kv_heads,
            layout.head_dim,
            layout.layers_per_group,
            KV_DTYPES.index(layout.dtype),
        ],
        np.int64,
    )


def native_layout_bytes(layout: KvNumbers) -> dict[str, int]:
    """Sizes as native code computes them: of a tile, a head, a side (K or V), a layer, a block."""
    return dict(_native.kv_layout_bytes(layout_numbers(layout)))


def check_pool(pool: Pool, layer: int, layout: KvNumbers) -> None:
    """Require a pool of whole blocks of this layout, and a layer that it has.

    Raises:
        ValueError: names what is wrong.
    """
    if pool.dtype != np.uint8 or pool.ndim != 2 or not pool.flags.c_contiguous:
        raise ValueError(
            f"pool is {pool.dtype} with {pool.ndim} dimensions, not a contiguous uint8 matrix"
        )
    if pool.shape[1] != layout.bytes_per_block:
        raise ValueError(
            f"pool has blocks of {pool.shape[1]} bytes, the layout {layout.bytes_per_block}"
        )
    if pool.ctypes.data % 4:
        raise ValueError("pool is not aligned to 4 bytes")
    if not 0 <= layer < layout.layers_per_group:
        raise ValueError(f"layer={layer} is not within the group's {layout.layers_per_group}")


def kv_write(
    k: Floats,
    v: Floats,
    slots: NDArray[np.int64],
    pool: Pool,
    layer: int,
    layout: KvNumbers,
    *,
    k_offset: Floats | None = None,
    rows: tuple[int, int] | None = None,
    isa_cap: int = -1,
) -> None:
    """Store each token's K and V at its slot, rounded or quantised to the KV dtype.

    Args:
        k, v: [T, Hkv * D] float32, rows may lie apart.
        slots: [T] int64, block id * S + offset in the block; no slot twice.
        pool: [N, bytes_per_block] uint8, written at those slots only.
        layer: index of the layer in its group.
        k_offset: [Hkv * D], subtracted from K by int8 only; None: nothing is.
        rows: tokens to store; None: all.
        isa_cap: index into `core.env.ISA_LEVELS`; -1: the best. The bits are the same.
    """
    cols = layout.num_kv_heads * layout.head_dim
    check_matrix("k", k, cols=cols)
    check_matrix("v", v, rows=k.shape[0], cols=cols)
    check_vector("slots", slots, np.int64, k.shape[0])
    check_pool(pool, layer, layout)
    check_below("slots", slots, pool.shape[0] * layout.block_size)
    if k_offset is not None:
        check_vector("k_offset", k_offset, np.float32, cols)
    begin, end = row_range(rows, k.shape[0])
    _native.kv_write(
        layout_numbers(layout), pool, layer, k, v, k_offset, slots, begin, end, isa_cap
    )
