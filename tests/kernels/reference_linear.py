"""The formats and the matrix product again, in plain NumPy and float64, one element at a time.

Written from the description of the formats, not from the kernels: each element's code and scales
are looked up by index arithmetic. Slow on purpose.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

BLOCKS = {
    "F32": (1, 4),
    "F16": (1, 2),
    "BF16": (1, 2),
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q5_0": (32, 22),
    "Q5_1": (32, 24),
    "Q8_0": (32, 34),
    "Q2_K": (256, 84),
    "Q3_K": (256, 110),
    "Q4_K": (256, 144),
    "Q5_K": (256, 176),
    "Q6_K": (256, 210),
}

HALVES = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
}
"""Where the float16 scales of a block stand."""

QUANTIZED = tuple(HALVES)
ALL = tuple(BLOCKS)


def stored_matrix(name: str, n: int, k: int, seed: int = 0) -> Bytes:
    """n rows of k elements in the given format: any codes, scales that make weights of about 1."""
    rng = np.random.default_rng(seed)
    if name not in HALVES:
        return store_numbers(name, rng.standard_normal((n, k)).astype(np.float32))
    elements, size = BLOCKS[name]
    blocks = rng.integers(0, 256, (n * k // elements, size), dtype=np.uint8)
    largest = {"Q8_0": 127, "Q6_K": 32 * 127, "Q3_K": 4 * 32, "Q2_K": 3 * 15, "Q4_K": 15 * 63}
    for place in HALVES[name]:
        scales = rng.standard_normal(len(blocks)) * 3 / largest.get(name, 31 * 32)
        blocks[:, place : place + 2] = scales.astype(np.float16).view(np.uint8).reshape(-1, 2)
    return blocks.reshape(-1)


def store_numbers(name: str, weights: Floats) -> Bytes:
    """Float32 weights as F32, F16 or BF16 bytes (BF16 by cutting)."""
    if name == "F32":
        return weights.reshape(-1).view(np.uint8)
    if name == "F16":
        return weights.astype(np.float16).reshape(-1).view(np.uint8)
    return (weights.view(np.uint32) >> 16).astype(np.uint16).reshape(-1).view(np.uint8)


def dequantize(name: str, raw: Bytes, n: int, k: int) -> Floats:
    """[n, k]: the stored weights, each operation rounded to float32 as the formats define them."""
    if name == "F32":
        return raw.view(np.float32).reshape(n, k)
    if name == "F16":
        return raw.view(np.float16).astype(np.float32).reshape(n, k)
    if name == "BF16":
        return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(n, k)
    blocks = raw.reshape(-1, BLOCKS[name][1])
    return _FORMATS[name](blocks).astype(np.float32).reshape(n, k)


def _half(blocks: Bytes, place: int) -> Floats:
    return blocks[:, place : place + 2].copy().view(np.float16).astype(np.float32)


def _bits(blocks: Bytes, first: int) -> NDArray[np.float32]:
    """The 32 bits from byte `first` on, lowest first: [blocks, 32]."""
    return np.unpackbits(blocks[:, first : first + 4], axis=1, bitorder="little").astype(np.float32)


def _nibbles(blocks: Bytes, first: int) -> NDArray[np.float32]:
    packed = blocks[:, first : first + 16]
    return np.concatenate([packed & 15, packed >> 4], axis=1).astype(np.float32)


def _q4_0(b: Bytes) -> Floats:
    return _half(b, 0) * (_nibbles(b, 2) - 8)


def _q4_1(b: Bytes) -> Floats:
    return _half(b, 0) * _nibbles(b, 4) + _half(b, 2)


def _q5_0(b: Bytes) -> Floats:
    return _half(b, 0) * (_nibbles(b, 6) + 16 * _bits(b, 2) - 16)


def _q5_1(b: Bytes) -> Floats:
    return _half(b, 0) * (_nibbles(b, 8) + 16 * _bits(b, 4)) + _half(b, 2)


def _q8_0(b: Bytes) -> Floats:
    return _half(b, 0) * b[:, 2:].view(np.int8).astype(np.float32)


def _each_element(
    b: Bytes, element: Callable[[int], tuple[NDArray[np.integer], Floats, Floats | None]]
) -> Floats:
    """[blocks, 256] from a function that gives code, scale and offset of all blocks' element i."""
    out = np.empty((len(b), 256), np.float32)
    for i in range(256):
        code, scale, offset = element(i)
        product = scale * code.astype(np.float32)
        out[:, i] = product if offset is None else product - offset
    return out


def _q2_k(b: Bytes) -> Floats:
    d, dmin = _half(b, 80)[:, 0], _half(b, 82)[:, 0]

    def element(i: int) -> tuple[NDArray[np.integer], Floats, Floats]:
        code = (b[:, 16 + 32 * (i // 128) + i % 32] >> (2 * (i // 32 % 4))) & 3
        packed = b[:, i // 16]
        return code, d * (packed & 15), dmin * (packed >> 4)

    return _each_element(b, element)


def _q3_k(b: Bytes) -> Floats:
    d = _half(b, 108)[:, 0]

    def element(i: int) -> tuple[NDArray[np.integer], Floats, None]:
        low = (b[:, 32 + 32 * (i // 128) + i % 32] >> (2 * (i // 32 % 4))) & 3
        high = (b[:, i % 32] >> (i // 32)) & 1
        j = i // 16
        four = (b[:, 96 + j % 8] >> (4 * (j // 8))) & 15
        two = (b[:, 104 + j % 4] >> (2 * (j // 4))) & 3
        scale = four.astype(np.int32) + 16 * two.astype(np.int32) - 32
        return low.astype(np.int32) + 4 * high - 4, d * scale.astype(np.float32), None

    return _each_element(b, element)


def _six_bits(b: Bytes, j: int) -> tuple[Bytes, Bytes]:
    """Scale and minimum j of the twelve packed bytes of Q4_K and Q5_K."""
    s = b[:, 4:16]
    if j < 4:
        return s[:, j] & 63, s[:, j + 4] & 63
    low, high = s[:, j + 4] & 15, s[:, j + 4] >> 4
    return low | ((s[:, j - 4] >> 6) << 4), high | ((s[:, j] >> 6) << 4)


def _q45_k(b: Bytes, codes: int, fifth: int | None) -> Floats:
    d, dmin = _half(b, 0)[:, 0], _half(b, 2)[:, 0]

    def element(i: int) -> tuple[NDArray[np.integer], Floats, Floats]:
        code = (b[:, codes + 32 * (i // 64) + i % 32] >> (4 * (i // 32 % 2))) & 15
        if fifth is not None:
            code = code + 16 * ((b[:, fifth + i % 32] >> (i // 32)) & 1)
        scale, minimum = _six_bits(b, i // 32)
        return code, d * scale, dmin * minimum

    return _each_element(b, element)


def _q4_k(b: Bytes) -> Floats:
    return _q45_k(b, 16, None)


def _q5_k(b: Bytes) -> Floats:
    return _q45_k(b, 48, 16)


def _q6_k(b: Bytes) -> Floats:
    d, scales = _half(b, 208)[:, 0], b[:, 192:208].view(np.int8)

    def element(i: int) -> tuple[NDArray[np.integer], Floats, None]:
        half, j = i // 128, i % 128
        low = (b[:, 64 * half + j % 64] >> (4 * (j // 64))) & 15
        high = (b[:, 128 + 32 * half + j % 32] >> (2 * (j // 32))) & 3
        code = low.astype(np.int32) + 16 * high.astype(np.int32) - 32
        return code, d * scales[:, i // 16].astype(np.float32), None

    return _each_element(b, element)


_FORMATS: dict[str, Callable[[Bytes], Floats]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}


def round_activations(x: Floats) -> NDArray[np.float64]:
    """x [T, k] after rounding to 8 bits in groups of 32, as float64."""
    groups = x.reshape(len(x), -1, 32)
    amax = np.abs(groups).max(axis=2, keepdims=True)
    inverse = np.divide(np.float32(127), amax, out=np.zeros_like(amax), where=amax > 0)
    codes = np.rint(groups * inverse)
    return (codes.astype(np.float64) * (amax / np.float32(127))).reshape(x.shape)
