"""Plain quantisers for the storage types of GGUF, for tests: short and obvious, not the best.

Each takes float32 blocks and rounds to nearest under scales from the block's extremes. Layouts are
those of the block structs in ggml's ggml-common.h.
"""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

Blocks = NDArray[np.float32]
Bytes = NDArray[np.uint8]

TYPE_IDS: Mapping[str, int] = {
    "f32": 0,
    "f16": 1,
    "q4_0": 2,
    "q4_1": 3,
    "q5_0": 6,
    "q5_1": 7,
    "q8_0": 8,
    "q2_k": 10,
    "q3_k": 11,
    "q4_k": 12,
    "q5_k": 13,
    "q6_k": 14,
    "bf16": 30,
}
"""Numbers of `ggml_type`."""

_SMALL, _SUPER = 32, 256


def row_block(quant: str) -> int:
    """Elements of a row that share a block: 1, 32 or 256."""
    if quant in ("f32", "f16", "bf16"):
        return 1
    return _SUPER if quant.endswith("_k") else _SMALL


def quantize(array: NDArray[np.float32], quant: str) -> bytes:
    """Encode a tensor whose rows are whole blocks."""
    if quant == "f32":
        return np.ascontiguousarray(array, "<f4").tobytes()
    if quant == "f16":
        return np.ascontiguousarray(array, "<f2").tobytes()
    if quant == "bf16":
        return to_bf16(array).tobytes()
    assert array.shape[-1] % row_block(quant) == 0, (array.shape, quant)
    blocks = np.ascontiguousarray(array, np.float32).reshape(-1, row_block(quant))
    return _ENCODERS[quant](blocks).tobytes()


def to_bf16(array: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The upper half of each float32, rounded to nearest, ties to even."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _f16(values: Blocks) -> Bytes:
    return np.ascontiguousarray(values.astype("<f2")).reshape(len(values), -1).view(np.uint8)


def _over(values: Blocks, scale: Blocks) -> Blocks:
    """values / scale, 0 where the scale is 0."""
    return np.divide(values, scale, out=np.zeros_like(values), where=scale != 0)


def _codes(values: Blocks, low: int, high: int) -> NDArray[np.int32]:
    return np.clip(np.rint(values), low, high).astype(np.int32)


def _nibbles(codes: NDArray[np.int32]) -> Bytes:
    """[B, 32] to [B, 16]: code i in the lower half of byte i, code i + 16 in the upper half."""
    return (codes[:, :16] & 15 | (codes[:, 16:] & 15) << 4).astype(np.uint8)


def _fifth_bits(codes: NDArray[np.int32]) -> Bytes:
    """[B, 32] to [B, 4]: bit i of a little-endian word is bit 4 of code i."""
    return np.packbits((codes >> 4 & 1).astype(np.uint8), axis=1, bitorder="little")


def _symmetric(x: Blocks, bits: int) -> tuple[Bytes, NDArray[np.int32]]:
    """Codes around 2^(bits-1); the value of largest magnitude gets code 0."""
    half = 1 << (bits - 1)
    extreme = np.take_along_axis(x, np.abs(x).argmax(axis=1)[:, None], axis=1)
    scale = (extreme / -half).astype(np.float16).astype(np.float32)
    return _f16(scale), _codes(_over(x, scale) + half, 0, 2 * half - 1)


def _affine(x: Blocks, bits: int) -> tuple[Bytes, NDArray[np.int32]]:
    low, high = x.min(axis=1, keepdims=True), x.max(axis=1, keepdims=True)
    scale = ((high - low) / ((1 << bits) - 1)).astype(np.float16).astype(np.float32)
    head = np.concatenate([_f16(scale), _f16(low)], axis=1)
    return head, _codes(_over(x - low, scale), 0, (1 << bits) - 1)


def _q8_0(x: Blocks) -> Bytes:
    scale = (np.abs(x).max(axis=1, keepdims=True) / 127).astype(np.float16).astype(np.float32)
    codes = _codes(_over(x, scale), -127, 127).astype(np.int8).view(np.uint8)
    return np.concatenate([_f16(scale), codes], axis=1)


def _q4_0(x: Blocks) -> Bytes:
    head, codes = _symmetric(x, 4)
    return np.concatenate([head, _nibbles(codes)], axis=1)


def _q4_1(x: Blocks) -> Bytes:
    head, codes = _affine(x, 4)
    return np.concatenate([head, _nibbles(codes)], axis=1)


def _q5_0(x: Blocks) -> Bytes:
    head, codes = _symmetric(x, 5)
    return np.concatenate([head, _fifth_bits(codes), _nibbles(codes)], axis=1)


def _q5_1(x: Blocks) -> Bytes:
    head, codes = _affine(x, 5)
    return np.concatenate([head, _fifth_bits(codes), _nibbles(codes)], axis=1)


def _hierarchical(
    x: Blocks, group: int, bits: int, scale_bits: int
) -> tuple[Bytes, NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
    """Scale and minimum for each group of a super-block, themselves codes under two float16.

    Returns:
        d and dmin [B, 4] bytes, codes [B, 256], scale codes and minimum codes [B, 256 / group].
    """
    top, scale_top = (1 << bits) - 1, (1 << scale_bits) - 1
    groups = x.reshape(len(x), -1, group)
    low = np.minimum(groups.min(axis=2), 0)
    wanted = (groups.max(axis=2) - low) / np.float32(top)
    d, dmin = (
        (part.max(axis=1, keepdims=True) / scale_top).astype(np.float16).astype(np.float32)
        for part in (wanted, -low)
    )
    scales = _codes(_over(wanted, np.broadcast_to(d, low.shape)), 0, scale_top)
    mins = _codes(_over(-low, np.broadcast_to(dmin, low.shape)), 0, scale_top)
    scale, minimum = (d * scales)[..., None], (dmin * mins)[..., None]
    codes = _codes(_over(groups + minimum, np.broadcast_to(scale, groups.shape)), 0, top)
    head = np.concatenate([_f16(d), _f16(dmin)], axis=1)
    return head, codes.reshape(x.shape), scales, mins


def _six_bit_pairs(scales: NDArray[np.int32], mins: NDArray[np.int32]) -> Bytes:
    """Eight 6-bit scales and minima in 12 bytes, as Q4_K and Q5_K pack them."""
    first = scales[:, :4] | (scales[:, 4:] >> 4) << 6
    second = mins[:, :4] | (mins[:, 4:] >> 4) << 6
    third = scales[:, 4:] & 15 | (mins[:, 4:] & 15) << 4
    return np.concatenate([first, second, third], axis=1).astype(np.uint8)


def _q4_k(x: Blocks) -> Bytes:
    head, codes, scales, mins = _hierarchical(x, 32, 4, 6)
    pairs = codes.reshape(len(x), 4, 2, 32)  # of each 64: the first 32 low, the others high
    nibbles = (pairs[:, :, 0] | pairs[:, :, 1] << 4).astype(np.uint8).reshape(len(x), 128)
    return np.concatenate([head, _six_bit_pairs(scales, mins), nibbles], axis=1)


def _q5_k(x: Blocks) -> Bytes:
    head, codes, scales, mins = _hierarchical(x, 32, 5, 6)
    pairs = (codes & 15).reshape(len(x), 4, 2, 32)
    nibbles = (pairs[:, :, 0] | pairs[:, :, 1] << 4).astype(np.uint8).reshape(len(x), 128)
    # Bit g of byte i is bit 4 of element i of group g.
    high = np.packbits(
        (codes >> 4).astype(np.uint8).reshape(len(x), 8, 32), axis=1, bitorder="little"
    ).reshape(len(x), 32)
    return np.concatenate([head, _six_bit_pairs(scales, mins), high, nibbles], axis=1)


def _quarters(codes: NDArray[np.int32]) -> Bytes:
    """2-bit codes: of each 128, element i of quarter j in bits 2j of byte i."""
    quarters = codes.reshape(len(codes), 2, 4, 32)
    packed = sum(quarters[:, :, j] << 2 * j for j in range(4))
    return np.asarray(packed).astype(np.uint8).reshape(len(codes), 64)


def _q2_k(x: Blocks) -> Bytes:
    head, codes, scales, mins = _hierarchical(x, 16, 2, 4)
    return np.concatenate([(scales | mins << 4).astype(np.uint8), _quarters(codes), head], axis=1)


def _signed_groups(
    x: Blocks, half: int, scale_low: int, scale_high: int
) -> tuple[Bytes, NDArray[np.int32], NDArray[np.int32]]:
    """Groups of 16 with signed scale codes under one float16.

    Returns:
        d [B, 2] bytes, codes [B, 256] from -half to half - 1, scale codes [B, 16].
    """
    groups = x.reshape(len(x), 16, 16)
    where = np.abs(groups).argmax(axis=2)[..., None]
    wanted = np.take_along_axis(groups, where, axis=2)[..., 0] / np.float32(-half)
    extreme = np.take_along_axis(wanted, np.abs(wanted).argmax(axis=1)[:, None], axis=1)
    d = (extreme / scale_low).astype(np.float16).astype(np.float32)
    scales = _codes(_over(wanted, np.broadcast_to(d, wanted.shape)), scale_low, scale_high)
    scale = np.broadcast_to((d * scales)[..., None], groups.shape)
    codes = _codes(_over(groups, scale), -half, half - 1)
    return _f16(d), codes.reshape(x.shape), scales


def _q3_k(x: Blocks) -> Bytes:
    head, codes, scales = _signed_groups(x, 4, -32, 31)
    codes, scales = codes + 4, scales + 32
    # Bit g of byte i is bit 2 of element i of the g-th 32.
    high = np.packbits(
        (codes >> 2).astype(np.uint8).reshape(len(x), 8, 32), axis=1, bitorder="little"
    ).reshape(len(x), 32)
    low_nibbles = scales[:, :8] & 15 | (scales[:, 8:] & 15) << 4
    upper = scales.reshape(len(x), 4, 4) >> 4
    upper_pairs = sum(upper[:, j] << 2 * j for j in range(4))
    packed = np.concatenate([low_nibbles, np.asarray(upper_pairs)], axis=1).astype(np.uint8)
    return np.concatenate([high, _quarters(codes & 3), packed, head], axis=1)


def _q6_k(x: Blocks) -> Bytes:
    head, codes, scales = _signed_groups(x, 32, -128, 127)
    quarters = (codes + 32).reshape(len(x), 2, 4, 32)
    low = (quarters[:, :, :2] & 15) | (quarters[:, :, 2:] & 15) << 4
    high = sum(quarters[:, :, j] >> 4 << 2 * j for j in range(4))
    parts = [low.reshape(len(x), 128), np.asarray(high).reshape(len(x), 64), scales & 255]
    return np.concatenate([*(part.astype(np.uint8) for part in parts), head], axis=1)


_ENCODERS: Mapping[str, Callable[[Blocks], Bytes]] = {
    "q4_0": _q4_0,
    "q4_1": _q4_1,
    "q5_0": _q5_0,
    "q5_1": _q5_1,
    "q8_0": _q8_0,
    "q2_k": _q2_k,
    "q3_k": _q3_k,
    "q4_k": _q4_k,
    "q5_k": _q5_k,
    "q6_k": _q6_k,
}
