"""Float32 to quantised blocks, in NumPy: for `--quantize` at load, small models and tests.

The types with blocks of 32 are encoded as ggml's reference encoder does, bit for bit. The types
with blocks of 256 (`quantize_k`) get correct blocks without its search for the best scales.

Source: ggml's `ggml-quants.c` (`quantize_row_*_ref`).
"""

from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kokuban.core.errors import ModelError
from kokuban.weights.dequant import BITS, dequantize
from kokuban.weights.mapped import WeightTensor
from kokuban.weights.quant_types import TensorType
from kokuban.weights.quantize_k import K_QUANTIZERS, Bytes, Floats, half_bytes, reciprocal

LOAD_TYPES: Mapping[Literal["int8", "int4"], TensorType] = {
    "int8": TensorType.Q8_0,
    "int4": TensorType.Q4_1,
}
"""What `--quantize` makes. Q4_1 over Q4_0: a min for each block costs half a bit and takes a
tenth off the error of normal weights (0.078 of their deviation against 0.086)."""

_CHUNK_ELEMENTS = 1 << 20


def quantize(values: NDArray[np.float32], tensor_type: TensorType) -> Bytes:
    """Encode numbers, rows end to end.

    Args:
        values: float32 of any shape, a whole number of blocks.

    Returns:
        [bytes] uint8.

    Raises:
        ModelError: a number is not finite, or too large for the type's float16 scales.
    """
    out = np.empty(tensor_type.num_bytes(values.size), np.uint8)
    flat = np.ascontiguousarray(values, np.float32).reshape(-1)
    _encode_into(out, flat, tensor_type)
    return out


def quantize_tensor(tensor: WeightTensor, tensor_type: TensorType) -> WeightTensor:
    """The tensor in another type, converted piece by piece so that little memory is in use.

    Raises:
        ModelError: a row is no whole number of blocks, or a number cannot be encoded.
    """
    if tensor.shape[-1] % tensor_type.block_elements:
        raise ModelError(
            f"the tensor {tensor.name!r} has rows of {tensor.shape[-1]} elements, no multiple of "
            f"the {tensor_type.name} block of {tensor_type.block_elements}"
        )
    source_step = tensor.type.num_bytes(_CHUNK_ELEMENTS)
    out = np.empty(tensor_type.num_bytes(tensor.num_elements), np.uint8)
    out_step = tensor_type.num_bytes(_CHUNK_ELEMENTS)
    for index, start in enumerate(range(0, tensor.data.nbytes, source_step)):
        values = dequantize(tensor.data[start : start + source_step], tensor.type)
        try:
            _encode_into(out[index * out_step : (index + 1) * out_step], values, tensor_type)
        except ModelError as error:
            raise ModelError(f"the tensor {tensor.name!r}: {error}") from None
    return WeightTensor(tensor.name, tensor_type, tensor.shape, out)


def _encode_into(out: Bytes, flat: Floats, tensor_type: TensorType) -> None:
    if not np.isfinite(flat).all():
        raise ModelError("holds numbers that are not finite and cannot be quantised")
    if np.abs(flat).max(initial=0) > np.finfo(np.float16).max and tensor_type is not TensorType.F32:
        raise ModelError(f"holds numbers above 65504, too large for {tensor_type.name}")
    blocks = flat.reshape(-1, tensor_type.block_elements)
    out[:] = _ENCODERS[tensor_type](blocks).reshape(-1)


def _f32(blocks: Floats) -> Bytes:
    return blocks.astype("<f4").view(np.uint8)


def _f16(blocks: Floats) -> Bytes:
    return blocks.astype("<f2").view(np.uint8)


def _bf16(blocks: Floats) -> Bytes:
    """Round to nearest, ties to even."""
    bits = blocks.astype(np.float32).view(np.uint32)
    rounded = bits + (np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1)))
    return (rounded >> np.uint32(16)).astype("<u2").view(np.uint8)


def _extreme(blocks: Floats) -> Floats:
    """[blocks, 1]: the element of largest magnitude, with its sign."""
    where = np.abs(blocks).argmax(axis=1)[:, None]
    return np.take_along_axis(blocks, where, axis=1)


def _nibble_bytes(codes: Bytes) -> Bytes:
    """[blocks, 16]: element i of 32 in the low half of byte i, element 16 + i in the high half."""
    low = codes & np.uint8(0x0F)
    return low[:, :16] | low[:, 16:] << np.uint8(4)


def _fifth_bit_bytes(codes: Bytes) -> Bytes:
    """[blocks, 4]: bit 4 of 32 codes as a little-endian word."""
    bits = (codes >> np.uint8(4)).reshape(-1, 4, 8) << BITS
    words: Bytes = np.bitwise_or.reduce(bits, axis=2)
    return words


def _symmetric(blocks: Floats, levels: int) -> tuple[Bytes, Bytes]:
    """Codes and scale bytes: the element of largest magnitude becomes code 0, zero the middle."""
    scale = _extreme(blocks) / np.float32(-levels // 2)
    codes = np.trunc(blocks * reciprocal(scale) + np.float32(levels / 2 + 0.5))
    return np.clip(codes, 0, levels - 1).astype(np.uint8), half_bytes(scale)


def _affine(blocks: Floats, levels: int) -> tuple[Bytes, Bytes]:
    """Codes, and the bytes of scale and min."""
    low = blocks.min(axis=1, keepdims=True)
    scale = (blocks.max(axis=1, keepdims=True) - low) / np.float32(levels - 1)
    codes = np.trunc((blocks - low) * reciprocal(scale) + np.float32(0.5))
    header = np.hstack([half_bytes(scale), half_bytes(low)])
    return np.clip(codes, 0, levels - 1).astype(np.uint8), header


def _q4_0(blocks: Floats) -> Bytes:
    codes, scale = _symmetric(blocks, 16)
    return np.hstack([scale, _nibble_bytes(codes)])


def _q4_1(blocks: Floats) -> Bytes:
    codes, header = _affine(blocks, 16)
    return np.hstack([header, _nibble_bytes(codes)])


def _q5_0(blocks: Floats) -> Bytes:
    codes, scale = _symmetric(blocks, 32)
    return np.hstack([scale, _fifth_bit_bytes(codes), _nibble_bytes(codes)])


def _q5_1(blocks: Floats) -> Bytes:
    codes, header = _affine(blocks, 32)
    return np.hstack([header, _fifth_bit_bytes(codes), _nibble_bytes(codes)])


def _q8_0(blocks: Floats) -> Bytes:
    scale = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)
    scaled = blocks * reciprocal(scale)
    rounded = np.trunc(scaled + np.copysign(np.float32(0.5), scaled))  # Half away from zero.
    return np.hstack([half_bytes(scale), rounded.astype(np.int8).view(np.uint8)])


_ENCODERS: Mapping[TensorType, Callable[[Floats], Bytes]] = {
    TensorType.F32: _f32,
    TensorType.F16: _f16,
    TensorType.BF16: _bf16,
    TensorType.Q4_0: _q4_0,
    TensorType.Q4_1: _q4_1,
    TensorType.Q5_0: _q5_0,
    TensorType.Q5_1: _q5_1,
    TensorType.Q8_0: _q8_0,
    **K_QUANTIZERS,
}
