"""Float32 to K-quant blocks of 256: correct blocks by plain rounding, without a search.

For test models. Each group's own scale is rounded to the block's few bits first, and the codes are
then chosen for the rounded scale, so that no error is counted twice.
"""

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from kokuban.weights.dequant import BITS, CRUMBS
from kokuban.weights.quant_types import TensorType

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


def half_bytes(scales: Floats) -> Bytes:
    """[blocks, 2]: each block's scale, [blocks, 1], as float16."""
    return scales.astype("<f2").view(np.uint8).reshape(-1, 2)


def reciprocal(scales: Floats) -> Floats:
    """1 / scale; 0 where the scale is 0, so that a block of zeros gets the code of zero."""
    with np.errstate(divide="ignore"):
        return np.where(scales == 0, np.float32(0), np.float32(1) / scales)


def _as_half(scales: Floats) -> Floats:
    return scales.astype(np.float16).astype(np.float32)


def _affine_groups(
    blocks: Floats, group: int, levels: int, scale_levels: int
) -> tuple[Bytes, Bytes, Bytes, Bytes]:
    """Codes [B, 256], scales and mins [B, groups], and d beside dmin [B, 4], all as bytes."""
    groups = blocks.reshape(len(blocks), -1, group)
    low = -np.minimum(groups.min(axis=2), 0)
    scale = (np.maximum(groups.max(axis=2), 0) + low) / np.float32(levels - 1)
    top = np.float32(scale_levels - 1)
    d = _as_half(scale.max(axis=1, keepdims=True) / top)
    dmin = _as_half(low.max(axis=1, keepdims=True) / top)
    scales = np.clip(np.rint(scale * reciprocal(d)), 0, top)
    mins = np.clip(np.rint(low * reciprocal(dmin)), 0, top)
    step = (d * scales)[:, :, None]
    codes = np.rint((groups + (dmin * mins)[:, :, None]) * reciprocal(step))
    codes = np.clip(codes, 0, levels - 1).reshape(len(blocks), 256)
    header = np.hstack([half_bytes(d), half_bytes(dmin)])
    return codes.astype(np.uint8), scales.astype(np.uint8), mins.astype(np.uint8), header


def _symmetric_groups(
    blocks: Floats, levels: int, scale_levels: int
) -> tuple[Bytes, NDArray[np.int8], Bytes]:
    """Codes [B, 256] from the lowest level up, signed scales [B, 16], and d as bytes, [B, 2]."""
    groups = blocks.reshape(len(blocks), 16, 16)
    where = np.abs(groups).argmax(axis=2)[:, :, None]
    scale = np.take_along_axis(groups, where, axis=2)[:, :, 0] / np.float32(-levels // 2)
    top = scale_levels // 2 - 1
    d = _as_half(np.abs(scale).max(axis=1, keepdims=True) / np.float32(top))
    scales = np.clip(np.rint(scale * reciprocal(d)), -top, top)
    codes = np.rint(groups * reciprocal((d * scales)[:, :, None])) + levels // 2
    codes = np.clip(codes, 0, levels - 1).reshape(len(blocks), 256)
    return codes.astype(np.uint8), scales.astype(np.int8), half_bytes(d)


def _pack(codes: Bytes, fields: int, shifts: Bytes) -> Bytes:
    """Merge `fields` runs of neighbouring codes into one run of bytes, each at its shift.

    Args:
        codes: [rows, fields * bytes].

    Returns:
        [rows, bytes].
    """
    runs = codes.reshape(len(codes), fields, -1) << shifts[:fields, None]
    merged: Bytes = np.bitwise_or.reduce(runs, axis=1)
    return merged


def _packed(codes: Bytes, run: int, bits: int) -> Bytes:
    """Codes of 4 or 2 bits, each `run` of elements in run * bits / 8 bytes; [blocks, bytes]."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return _pack(codes.reshape(-1, run), len(shifts), shifts).reshape(len(codes), -1)


def _packed_scales(scales: Bytes, mins: Bytes) -> Bytes:
    """[blocks, 12]: eight 6-bit scales and mins; the layout is at `dequant._scales_and_mins`."""
    first = scales[:, :4] | scales[:, 4:] >> np.uint8(4) << np.uint8(6)
    second = mins[:, :4] | mins[:, 4:] >> np.uint8(4) << np.uint8(6)
    third = scales[:, 4:] & np.uint8(15) | (mins[:, 4:] & np.uint8(15)) << np.uint8(4)
    return np.hstack([first, second, third])


def _q2_k(blocks: Floats) -> Bytes:
    codes, scales, mins, header = _affine_groups(blocks, 16, 4, 16)
    return np.hstack([scales | mins << np.uint8(4), _packed(codes, 128, 2), header])


def _q3_k(blocks: Floats) -> Bytes:
    codes, scales, d = _symmetric_groups(blocks, 8, 64)
    third_bits = _pack(codes >> np.uint8(2), 8, BITS)
    raised = (scales + 32).astype(np.uint8)
    low = raised & np.uint8(15)
    low_bytes = low[:, :8] | low[:, 8:] << np.uint8(4)
    high_bytes = _pack(raised >> np.uint8(4), 4, CRUMBS)
    low_codes = _packed(codes & np.uint8(3), 128, 2)
    return np.hstack([third_bits, low_codes, low_bytes, high_bytes, d])


def _q4_k(blocks: Floats) -> Bytes:
    codes, scales, mins, header = _affine_groups(blocks, 32, 16, 64)
    return np.hstack([header, _packed_scales(scales, mins), _packed(codes, 64, 4)])


def _q5_k(blocks: Floats) -> Bytes:
    codes, scales, mins, header = _affine_groups(blocks, 32, 32, 64)
    fifth_bits = _pack(codes >> np.uint8(4), 8, BITS)
    low = _packed(codes & np.uint8(15), 64, 4)
    return np.hstack([header, _packed_scales(scales, mins), fifth_bits, low])


def _q6_k(blocks: Floats) -> Bytes:
    codes, scales, d = _symmetric_groups(blocks, 64, 256)
    low = _packed(codes & np.uint8(15), 128, 4)
    high = _packed(codes >> np.uint8(4), 128, 2)
    return np.hstack([low, high, scales.view(np.uint8), d])


K_QUANTIZERS: Mapping[TensorType, Callable[[Floats], Bytes]] = {
    TensorType.Q2_K: _q2_k,
    TensorType.Q3_K: _q3_k,
    TensorType.Q4_K: _q4_k,
    TensorType.Q5_K: _q5_k,
    TensorType.Q6_K: _q6_k,
}
