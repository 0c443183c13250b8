"""Where a token's K and V lie inside a KV block, and the way back.

    pool             [block][layer of the group][K, V][kv head][head]
    K of one head    [S / 16 tiles][D / pair][16 tokens][pair]
    V of one head    [S][D]

Sixteen tokens of a K tile are sixteen lanes of a register, so that a dot product with sixteen keys
needs no sum over lanes. bf16 keeps two neighbours in D together (pair = 2): 32 bits are widened to
two float32 by a shift and a mask. A V row is read whole, one token after another.

A block is block-major: it moves between tiers, or is copied on write, in one piece. Layers with the
same need share a group, all groups have the same number of layers, and one pool serves them all: a
block of any group is `layers_per_group` layers deep. csrc/kernels/kv_write/kv_layout.h has the same
numbers. Scales of 8-bit dtypes will follow each head's data.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kokuban.core.config import KV_DTYPES, KvDtype
from kokuban.core.errors import ConfigError

Floats = NDArray[np.float32]
Block = NDArray[np.uint8]

TILE = 16
"""Tokens in a K tile."""

_BLOCK_SIZES = (16, 32, 64, 128)
_MAX_HEAD_DIM = 512
_VERSION = 1
_ELEMENT_BYTES: dict[KvDtype, int] = {"bf16": 2, "fp16": 2, "fp32": 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class KvLayout:
    """The shape of a KV block and the addresses in it. All offsets are in bytes.

    Raises:
        ConfigError: a number that kernels cannot serve.
    """

    block_size: int
    """S, tokens in a block."""

    num_kv_heads: int
    head_dim: int
    """D, a multiple of 8."""

    layers_per_group: int
    dtype: KvDtype

    def __post_init__(self) -> None:
        problems = []
        if self.block_size not in _BLOCK_SIZES:
            problems.append(f"block_size={self.block_size} is none of 16, 32, 64, 128")
        if self.dtype not in KV_DTYPES:
            problems.append(f"dtype={self.dtype} is none of {', '.join(KV_DTYPES)}")
        if not 8 <= self.head_dim <= _MAX_HEAD_DIM or self.head_dim % 8:
            problems.append(
                f"head_dim={self.head_dim} is no multiple of 8 from 8 to {_MAX_HEAD_DIM}"
            )
        if self.num_kv_heads < 1 or self.layers_per_group < 1:
            problems.append(
                f"num_kv_heads={self.num_kv_heads} or layers_per_group={self.layers_per_group} "
                f"is below 1"
            )
        if problems:
            raise ConfigError("; ".join(problems))

    @property
    def element_bytes(self) -> int:
        return _ELEMENT_BYTES[self.dtype]

    @property
    def pair(self) -> int:
        """Elements of one token that lie together in a K tile."""
        return 2 if self.dtype == "bf16" else 1

    @property
    def tile_bytes(self) -> int:
        """Sixteen tokens of one head, K or V alike."""
        return TILE * self.head_dim * self.element_bytes

    @property
    def head_bytes(self) -> int:
        """One head of a block, K or V alike."""
        return self.block_size * self.head_dim * self.element_bytes

    @property
    def side_bytes(self) -> int:
        """K of all heads; V lies as far behind K."""
        return self.num_kv_heads * self.head_bytes

    @property
    def layer_bytes(self) -> int:
        return 2 * self.side_bytes

    @property
    def bytes_per_block(self) -> int:
        return self.layers_per_group * self.layer_bytes

    @property
    def bytes_per_token(self) -> int:
        """What one token takes in one group."""
        return self.bytes_per_block // self.block_size

    @property
    def layout_id(self) -> str:
        """Names the bytes: stands in every stored header. Equal ids, equal meaning."""
        return (
            f"kv{_VERSION}-{self.dtype}-s{self.block_size}-h{self.num_kv_heads}"
            f"-d{self.head_dim}-l{self.layers_per_group}"
        )

    def k_offset(self, layer: int, head: int, token: int, d: int) -> int:
        """Of one K element inside its block; token counts from the block's first slot."""
        tile, lane = divmod(token, TILE)
        element = (d // self.pair * TILE + lane) * self.pair + d % self.pair
        return (
            layer * self.layer_bytes
            + head * self.head_bytes
            + tile * self.tile_bytes
            + element * self.element_bytes
        )

    def v_offset(self, layer: int, head: int, token: int, d: int) -> int:
        """Of one V element inside its block."""
        return (
            layer * self.layer_bytes
            + self.side_bytes
            + head * self.head_bytes
            + (token * self.head_dim + d) * self.element_bytes
        )

    def pack(self, k: Floats, v: Floats) -> Block:
        """A block with these values, rounded to the KV dtype (nearest even).

        Args:
            k, v: [layers_per_group, Hkv, S, D] float32.

        Returns:
            [bytes_per_block] uint8.
        """
        shape = (self.layers_per_group, self.num_kv_heads, self.block_size, self.head_dim)
        if k.shape != shape or v.shape != shape:
            raise ValueError(f"k is {k.shape} and v {v.shape}, not {shape}")
        tiles = _encode(k, self.dtype).reshape(
            *shape[:2], -1, TILE, self.head_dim // self.pair, self.pair
        )
        sides = np.stack(
            [
                tiles.transpose(0, 1, 2, 4, 3, 5).reshape(shape[0], -1),
                _encode(v, self.dtype).reshape(shape[0], -1),
            ],
            axis=1,
        )
        return np.ascontiguousarray(sides).view(np.uint8).reshape(-1)

    def unpack(self, block: Block) -> tuple[Floats, Floats]:
        """K and V of a block as float32: the inverse of `pack`.

        Returns:
            Two arrays [layers_per_group, Hkv, S, D].
        """
        if block.shape != (self.bytes_per_block,) or block.dtype != np.uint8:
            raise ValueError(
                f"block is {block.dtype} {block.shape}, not uint8 ({self.bytes_per_block},)"
            )
        words = np.ascontiguousarray(block).view(_WORDS[self.dtype])
        sides = words.reshape(self.layers_per_group, 2, self.num_kv_heads, -1)
        tiles = sides[:, 0].reshape(
            *sides.shape[::2], -1, self.head_dim // self.pair, TILE, self.pair
        )
        shape = (self.layers_per_group, self.num_kv_heads, self.block_size, self.head_dim)
        k = tiles.transpose(0, 1, 2, 4, 3, 5).reshape(shape)
        return _decode(k, self.dtype), _decode(sides[:, 1].reshape(shape), self.dtype)


_WORDS: dict[KvDtype, type[np.generic]] = {
    "bf16": np.uint16,
    "fp16": np.float16,
    "fp32": np.float32,
}


def _encode(x: Floats, dtype: KvDtype) -> NDArray[np.generic]:
    if dtype != "bf16":
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(x).astype(_WORDS[dtype])
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(x), np.uint16(0x7FC0), rounded)


def _decode(words: NDArray[np.generic], dtype: KvDtype) -> Floats:
    if dtype != "bf16":
        return np.ascontiguousarray(words).astype(np.float32)
    return (np.ascontiguousarray(words).astype(np.uint32) << 16).view(np.float32)
