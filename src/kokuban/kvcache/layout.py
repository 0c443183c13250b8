"""Where a token's K and V lie inside a KV block, and the way back.

    pool             [block][layer of the group][K, V][kv head][head]
    K of one head    [S / 16 tiles][D / k_pair][16 tokens][k_pair]
    V of one head    [S / v_pair][D][v_pair tokens]
    scales           [S] float32 behind each head's K and behind its V: int8 and fp8_e4m3 only

Sixteen tokens of a K tile are sixteen lanes of a register, so that a dot product with sixteen keys
needs no sum over lanes. bf16 keeps two neighbours in D together: 32 bits are widened to two float32
by a shift and a mask. int8 keeps four of K together, and two tokens of V: they are multiplied as
pairs of 16-bit integers. Other V rows are read whole, one token after another.

A block is block-major: it moves between tiers, or is copied on write, in one piece, scales and all.
Layers with the same need share a group, all groups have the same number of layers, and one pool
serves them all: a block of any group is `layers_per_group` layers deep.
csrc/kernels/kv_write/kv_layout.h has the same numbers.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kokuban.core.config import KV_DTYPES, KV_ELEMENT_BYTES, KV_SCALE_BYTES, KvDtype, kv_head_bytes
from kokuban.core.errors import ConfigError
from kokuban.kvcache.kv_codes import (
    WORDS,
    Floats,
    Words,
    decode,
    encode,
    quantize,
    rotate,
    rotation_size,
)

Block = NDArray[np.uint8]

TILE = 16
"""Tokens in a K tile."""

_BLOCK_SIZES = (16, 32, 64, 128)
_MAX_HEAD_DIM = 512
_VERSION = 1
_K_PAIRS: Mapping[KvDtype, int] = {"bf16": 2, "fp16": 1, "fp32": 1, "int8": 4, "fp8_e4m3": 1}
_V_PAIRS: Mapping[KvDtype, int] = {"bf16": 1, "fp16": 1, "fp32": 1, "int8": 2, "fp8_e4m3": 1}


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
        return KV_ELEMENT_BYTES[self.dtype]

    @property
    def scaled(self) -> bool:
        """Whether each token's K, and its V, has a scale in each head."""
        return KV_SCALE_BYTES[self.dtype] > 0

    @property
    def rotated(self) -> bool:
        """Whether K is stored rotated: see `kv_codes.rotate`."""
        return self.dtype == "int8"

    @property
    def k_pair(self) -> int:
        """Elements of one token that lie together in a K tile."""
        return _K_PAIRS[self.dtype]

    @property
    def v_pair(self) -> int:
        """Tokens whose elements lie together in V."""
        return _V_PAIRS[self.dtype]

    @property
    def tile_bytes(self) -> int:
        """The elements of sixteen tokens of one head, K or V alike."""
        return TILE * self.head_dim * self.element_bytes

    @property
    def elements_bytes(self) -> int:
        """The elements of one head of a block, K or V alike: its scales follow."""
        return self.block_size * self.head_dim * self.element_bytes

    @property
    def head_bytes(self) -> int:
        """One head of a block, K or V alike."""
        return self.block_size * kv_head_bytes(self.dtype, self.head_dim)

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
        element = (d // self.k_pair * TILE + lane) * self.k_pair + d % self.k_pair
        return (
            layer * self.layer_bytes
            + head * self.head_bytes
            + tile * self.tile_bytes
            + element * self.element_bytes
        )

    def v_offset(self, layer: int, head: int, token: int, d: int) -> int:
        """Of one V element inside its block."""
        row, place = divmod(token, self.v_pair)
        element = (row * self.head_dim + d) * self.v_pair + place
        return (
            layer * self.layer_bytes
            + self.side_bytes
            + head * self.head_bytes
            + element * self.element_bytes
        )

    def k_scale_offset(self, layer: int, head: int, token: int) -> int:
        """Of the float32 scale of a token's K, in a dtype that has scales."""
        start = layer * self.layer_bytes + head * self.head_bytes + self.elements_bytes
        return start + 4 * token

    def v_scale_offset(self, layer: int, head: int, token: int) -> int:
        """Of the scale of a token's V."""
        return self.side_bytes + self.k_scale_offset(layer, head, token)

    def pack(self, k: Floats, v: Floats) -> Block:
        """A block with these values, rounded to the KV dtype as the kernels do it.

        Args:
            k, v: [layers_per_group, Hkv, S, D] float32.

        Returns:
            [bytes_per_block] uint8.
        """
        if k.shape != self._shape or v.shape != self._shape:
            raise ValueError(f"k is {k.shape} and v {v.shape}, not {self._shape}")
        block = np.empty((self.layers_per_group, 2, self.num_kv_heads, self.head_bytes), np.uint8)
        for side, (x, arrange) in enumerate(((k, self._k_in_tiles), (v, self._v_in_pairs))):
            if self.rotated and side == 0:
                x = rotate(x * np.float32(1 / rotation_size(self.head_dim)))
            if self.scaled:
                words, scales = quantize(x, self.dtype)
                block[:, side, :, self.elements_bytes :] = _bytes_of(scales)
            else:
                words = encode(x, self.dtype)
            block[:, side, :, : self.elements_bytes] = _bytes_of(
                arrange(words).reshape(*self._shape[:2], -1)
            )
        return block.reshape(-1)

    def unpack(self, block: Block) -> tuple[Floats, Floats]:
        """K and V of a block as float32, scales applied: the inverse of `pack`.

        Returns:
            Two arrays [layers_per_group, Hkv, S, D].
        """
        if block.shape != (self.bytes_per_block,) or block.dtype != np.uint8:
            raise ValueError(
                f"block is {block.dtype} {block.shape}, not uint8 ({self.bytes_per_block},)"
            )
        sides = block.reshape(self.layers_per_group, 2, self.num_kv_heads, self.head_bytes)
        found = []
        for side, restore in enumerate((self._k_from_tiles, self._v_from_pairs)):
            heads = sides[:, side]
            words = np.ascontiguousarray(heads[..., : self.elements_bytes]).view(WORDS[self.dtype])
            values = decode(restore(words), self.dtype)
            if self.scaled:
                scales = np.ascontiguousarray(heads[..., self.elements_bytes :]).view(np.float32)
                values = values * scales[..., None]
            if self.rotated and side == 0:
                values = rotate(values)
            found.append(values)
        return found[0], found[1]

    @property
    def _shape(self) -> tuple[int, int, int, int]:
        return (self.layers_per_group, self.num_kv_heads, self.block_size, self.head_dim)

    def _k_in_tiles(self, words: Words) -> Words:
        tiles = words.reshape(*self._shape[:2], -1, TILE, self.head_dim // self.k_pair, self.k_pair)
        return tiles.transpose(0, 1, 2, 4, 3, 5)

    def _k_from_tiles(self, words: Words) -> Words:
        tiles = words.reshape(*self._shape[:2], -1, self.head_dim // self.k_pair, TILE, self.k_pair)
        return tiles.transpose(0, 1, 2, 4, 3, 5).reshape(self._shape)

    def _v_in_pairs(self, words: Words) -> Words:
        return words.reshape(*self._shape[:2], -1, self.v_pair, self.head_dim).swapaxes(3, 4)

    def _v_from_pairs(self, words: Words) -> Words:
        pairs = words.reshape(*self._shape[:2], -1, self.head_dim, self.v_pair)
        return pairs.swapaxes(3, 4).reshape(self._shape)


def _bytes_of(array: Words) -> NDArray[np.uint8]:
    return np.ascontiguousarray(array).view(np.uint8)
