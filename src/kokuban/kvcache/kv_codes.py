"""What the elements of each KV dtype mean: floats to words and back, in NumPy.

The kernels do the same in csrc/kernels/kv_write/kv_write.h, which is where the rules stand.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from kokuban.core.config import KvDtype

Floats = NDArray[np.float32]
Words = NDArray[np.generic]

WORDS: Mapping[KvDtype, type[np.generic]] = {
    "bf16": np.uint16,
    "fp16": np.float16,
    "fp32": np.float32,
    "int8": np.int8,
    "fp8_e4m3": np.uint8,
}
"""The NumPy type that holds one element."""

LEAST_SCALE = np.float32(2**-126)
"""Rows of zeros, and rows so small that their scale would vanish, take this one."""

_LARGEST = {"int8": np.float32(127), "fp8_e4m3": np.float32(448)}


def encode(x: Floats, dtype: KvDtype) -> Words:
    """Round to a dtype without scales: to nearest even; NaN stays NaN."""
    if dtype != "bf16":
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(x).astype(WORDS[dtype])
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(x), np.uint16(0x7FC0), rounded)


def quantize(x: Floats, dtype: KvDtype) -> tuple[Words, Floats]:
    """Codes and scales of rows [..., D] of a dtype with scales.

    Returns:
        Codes [..., D], and one scale for each row, [...]. Where a row holds what is not finite, its
        scale is NaN and its codes are 0.
    """
    finite = np.isfinite(x).all(axis=-1, keepdims=True)
    safe = np.where(finite, x, np.float32(0)).astype(np.float32)
    largest = np.abs(safe).max(axis=-1, keepdims=True)
    scales = np.maximum(largest / _LARGEST[dtype], LEAST_SCALE)
    codes = safe / scales
    words = np.rint(codes).astype(np.int8) if dtype == "int8" else _e4m3_codes(codes)
    return words, np.where(finite, scales, np.float32(np.nan))[..., 0]


def rotate(x: Floats) -> Floats:
    """H x over the last axis: what int8 stores of K is H (k / n), and H of that is k again.

    H is a Hadamard matrix of n × n in runs of n elements, n the largest power of two that divides
    D. It spreads a few elements that are far larger than the others over all of them, so that one
    scale serves the row. Sums in the order of csrc/kernels/kv_write/rotation.h.
    """
    out = np.array(x, np.float32)
    apart, size = 1, rotation_size(x.shape[-1])
    while apart < size:
        runs = out.reshape(*x.shape[:-1], -1, 2, apart)
        low, high = runs[..., 0, :].copy(), runs[..., 1, :].copy()
        runs[..., 0, :], runs[..., 1, :] = low + high, low - high
        apart *= 2
    return out


def rotation_size(head_dim: int) -> int:
    """n: the largest power of two that divides D."""
    return head_dim & -head_dim


def decode(words: Words, dtype: KvDtype) -> Floats:
    """Elements as float32, scales left aside: the inverse of `encode`."""
    if dtype == "fp8_e4m3":
        return _E4M3[words.astype(np.uint8)]
    if dtype != "bf16":
        return np.ascontiguousarray(words).astype(np.float32)
    return (np.ascontiguousarray(words).astype(np.uint32) << 16).view(np.float32)


def _e4m3_values() -> Floats:
    """The value of each of the 256 codes: sign, 4 bits of exponent (bias 7), 3 of mantissa.

    Source: Micikevicius et al. 2022, "FP8 formats for deep learning", table 1.
    """
    codes = np.arange(128)
    exponent, mantissa = codes >> 3, codes & 7
    normal = (8 + mantissa) * 2.0 ** (exponent - 10)
    values = np.where(exponent == 0, mantissa * 2.0**-9, normal)
    values[127] = np.nan  # There are no infinities.
    return np.concatenate([values, -values]).astype(np.float32)


_E4M3 = _e4m3_values()


def _e4m3_codes(x: Floats) -> NDArray[np.uint8]:
    """The nearest of the codes up to 448; of two equally near, the even one."""
    size = np.abs(x).astype(np.float64)
    _, exponent = np.frexp(size)
    step = 2.0 ** (np.maximum(exponent - 1, -6) - 3)
    nearest = np.minimum(np.rint(size / step) * step, 448)
    codes: NDArray[np.intp] = np.searchsorted(_E4M3[:127], nearest.astype(np.float32))
    codes = codes + np.where(np.signbit(x), 128, 0)
    return codes.astype(np.uint8)
