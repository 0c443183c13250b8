"""What each storage type means, in NumPy: raw blocks to float32.

This is the judge of the native kernels. It follows the block layouts field by field and is never
optimised for speed. Every product and difference is one float32 operation, rounded by itself, in
the order that the formula beside it shows.

Source: ggml's `ggml-common.h` (block structs) and `ggml-quants.c` (`dequantize_row_*`).
"""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from kokuban.weights.mapped import WeightTensor
from kokuban.weights.quant_types import TensorType

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

NIBBLES = np.array([0, 4], np.uint8)
"""Shifts of the low and the high half of a byte."""

CRUMBS = np.array([0, 2, 4, 6], np.uint8)
"""Shifts of the four 2-bit fields of a byte."""

BITS = np.arange(8, dtype=np.uint8)


def dequantize(data: Bytes, tensor_type: TensorType) -> Floats:
    """The numbers that raw blocks stand for.

    Args:
        data: uint8, any number of whole blocks, end to end; not changed.

    Returns:
        [elements] float32, a new array.
    """
    blocks = np.ascontiguousarray(data).reshape(-1, tensor_type.block_bytes)
    return _DEQUANTIZERS[tensor_type](blocks).reshape(-1)


def dequantize_tensor(tensor: WeightTensor) -> Floats:
    """A whole tensor as float32, in its shape."""
    return dequantize(tensor.data, tensor.type).reshape(tensor.shape)


def half_scale(blocks: Bytes, at: int) -> Floats:
    """[blocks, 1] float32: the float16 that each block has at byte `at`."""
    return blocks[:, at : at + 2].copy().view("<f2").astype(np.float32)


def fields(packed: Bytes, shifts: Bytes, mask: int) -> Bytes:
    """[blocks, shifts, bytes]: the field at each shift of each of a block's bytes."""
    return packed[:, None, :] >> shifts[:, None] & np.uint8(mask)


def _f32(blocks: Bytes) -> Floats:
    return blocks.copy().view("<f4").astype(np.float32)


def _f16(blocks: Bytes) -> Floats:
    return blocks.copy().view("<f2").astype(np.float32)


def _bf16(blocks: Bytes) -> Floats:
    """The upper half of a float32."""
    return (blocks.copy().view("<u2").astype(np.uint32) << 16).view(np.float32)


def _low_then_high(packed: Bytes) -> Bytes:
    """[blocks, 32]: low halves of 16 bytes, then the high halves."""
    return fields(packed, NIBBLES, 0x0F).reshape(-1, 32)


def _fifth_bits(packed: Bytes) -> Bytes:
    """[blocks, 32]: bit i of a little-endian 32-bit word, moved to bit 4."""
    bits = packed[:, :, None] >> BITS & np.uint8(1)
    return bits.reshape(-1, 32) << np.uint8(4)


def _q4_0(blocks: Bytes) -> Floats:
    """d f16 · 16 bytes of 4-bit codes: (code - 8) * d."""
    codes = _low_then_high(blocks[:, 2:]).astype(np.float32) - 8
    return codes * half_scale(blocks, 0)


def _q4_1(blocks: Bytes) -> Floats:
    """d f16 · m f16 · 16 bytes of 4-bit codes: code * d + m."""
    codes = _low_then_high(blocks[:, 4:]).astype(np.float32)
    return codes * half_scale(blocks, 0) + half_scale(blocks, 2)


def _q5_0(blocks: Bytes) -> Floats:
    """d f16 · 4 bytes of fifth bits · 16 bytes of lower bits: (code - 16) * d."""
    codes = _low_then_high(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6])
    return (codes.astype(np.float32) - 16) * half_scale(blocks, 0)


def _q5_1(blocks: Bytes) -> Floats:
    """d f16 · m f16 · 4 bytes of fifth bits · 16 bytes of lower bits: code * d + m."""
    codes = _low_then_high(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8])
    return codes.astype(np.float32) * half_scale(blocks, 0) + half_scale(blocks, 2)


def _q8_0(blocks: Bytes) -> Floats:
    """d f16 · 32 signed bytes: code * d."""
    return blocks[:, 2:].view(np.int8).astype(np.float32) * half_scale(blocks, 0)


def _q2_k(blocks: Bytes) -> Floats:
    """16 bytes of scale and min (4 bits each) · 64 bytes of 2-bit codes · d f16 · dmin f16.

    A group of 16: d * scale * code - dmin * min. The codes of 128 elements lie in 32 bytes:
    elements 0 to 31 in their lowest two bits, 32 to 63 in the next two, and so on.
    """
    scales = half_scale(blocks, 80) * (blocks[:, :16] & 0x0F).astype(np.float32)
    mins = half_scale(blocks, 82) * (blocks[:, :16] >> 4).astype(np.float32)
    codes = fields(blocks[:, 16:80].reshape(-1, 32), CRUMBS, 3).reshape(-1, 16, 16)
    return scales[:, :, None] * codes.astype(np.float32) - mins[:, :, None]


def _q3_k(blocks: Bytes) -> Floats:
    """32 bytes of third bits · 64 bytes of lower two bits · 12 bytes of 6-bit scales · d f16.

    A group of 16: d * (scale - 32) * (code - 4). The lower bits lie as in Q2_K; the third bits of
    elements 32 * i to 32 * i + 31 are bit i of the 32 bytes. Of the scales, the first 8 bytes hold
    the lower four bits (0 to 7, then 8 to 15), the last 4 the upper two.
    """
    packed = blocks[:, 96:108]
    low = fields(packed[:, :8], NIBBLES, 0x0F).reshape(-1, 16)
    high = fields(packed[:, 8:], CRUMBS, 3).reshape(-1, 16)
    scales = half_scale(blocks, 108) * ((low | high << 4).astype(np.float32) - 32)
    low_bits = fields(blocks[:, 32:96].reshape(-1, 32), CRUMBS, 3).reshape(-1, 256)
    third_bits = fields(blocks[:, :32], BITS, 1).reshape(-1, 256)
    codes = (low_bits | third_bits << 2).astype(np.float32) - 4
    return scales[:, :, None] * codes.reshape(-1, 16, 16)


def _scales_and_mins(packed: Bytes) -> tuple[Floats, Floats]:
    """[blocks, 8] each: 6-bit scales and mins from 12 bytes.

    Bytes 0 to 3 hold the scales and bytes 4 to 7 the mins of groups 0 to 3 in their lower six
    bits. Bytes 8 to 11 hold the lower four bits of scale and min of groups 4 to 7, whose upper two
    are the upper two of bytes 0 to 3 and 4 to 7.
    """
    first, second, third = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.hstack([first & 63, third & 15 | first >> 6 << 4])
    mins = np.hstack([second & 63, third >> 4 | second >> 6 << 4])
    return scales.astype(np.float32), mins.astype(np.float32)


def _scaled_k(blocks: Bytes, codes: Bytes) -> Floats:
    """Q4_K and Q5_K: groups of 32 as d * scale * code - dmin * min; d and dmin stand first."""
    scales, mins = _scales_and_mins(blocks[:, 4:16])
    scales, mins = half_scale(blocks, 0) * scales, half_scale(blocks, 2) * mins
    return scales[:, :, None] * codes.reshape(-1, 8, 32).astype(np.float32) - mins[:, :, None]


def _q4_k(blocks: Bytes) -> Floats:
    """d f16 · dmin f16 · 12 bytes of scales and mins · 128 bytes of 4-bit codes.

    Each 32 bytes hold 64 elements: low halves, then high halves.
    """
    codes = fields(blocks[:, 16:].reshape(-1, 32), NIBBLES, 0x0F)
    return _scaled_k(blocks, codes)


def _q5_k(blocks: Bytes) -> Floats:
    """As Q4_K with 32 bytes of fifth bits before the codes: group i's are bit i of them."""
    low = fields(blocks[:, 48:].reshape(-1, 32), NIBBLES, 0x0F).reshape(-1, 8, 32)
    return _scaled_k(blocks, low | fields(blocks[:, 16:48], BITS, 1) << np.uint8(4))


def _q6_k(blocks: Bytes) -> Floats:
    """128 bytes of lower four bits · 64 bytes of upper two · 16 signed scales · d f16.

    A group of 16: d * scale * (code - 32). Of 128 elements, the lower bits lie in 64 bytes, low
    halves first; the upper ones in 32 bytes as in Q2_K.
    """
    low = fields(blocks[:, :128].reshape(-1, 64), NIBBLES, 0x0F).reshape(-1, 256)
    high = fields(blocks[:, 128:192].reshape(-1, 32), CRUMBS, 3).reshape(-1, 256)
    codes = (low | high << 4).astype(np.float32) - 32
    scales = half_scale(blocks, 208) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    return scales[:, :, None] * codes.reshape(-1, 16, 16)


_DEQUANTIZERS: Mapping[TensorType, Callable[[Bytes], Floats]] = {
    TensorType.F32: _f32,
    TensorType.F16: _f16,
    TensorType.BF16: _bf16,
    TensorType.Q4_0: _q4_0,
    TensorType.Q4_1: _q4_1,
    TensorType.Q5_0: _q5_0,
    TensorType.Q5_1: _q5_1,
    TensorType.Q8_0: _q8_0,
    TensorType.Q2_K: _q2_k,
    TensorType.Q3_K: _q3_k,
    TensorType.Q4_K: _q4_k,
    TensorType.Q5_K: _q5_k,
    TensorType.Q6_K: _q6_k,
}
