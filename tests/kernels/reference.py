"""What the kernels mean, in NumPy and float64, with loops where a loop is clearer.

The judge shares no code and no order of accumulation with what it judges.
"""

import numpy as np
from numpy.typing import NDArray

from kokuban import _native

Floats = NDArray[np.floating]
Doubles = NDArray[np.float64]

VARIANTS = sorted({_native.isa_level(cap) for cap in (0, 1, 4)})
"""One instruction set level for each variant that this machine can run; 0 is the scalar one."""


def rms_norm(x: Floats, weight: Floats, eps: float) -> Doubles:
    runs = x.astype(np.float64).reshape(x.shape[0], -1, weight.shape[0])
    norm = runs / np.sqrt((runs**2).mean(axis=2, keepdims=True) + eps)
    return (norm * weight.astype(np.float64)).reshape(x.shape)


def rope(
    x: Floats, angles: Floats, *, num_heads: int, rotary_dim: int, interleaved: bool
) -> Doubles:
    """angles: [T, rotary_dim / 2]. Each pair is a complex number, turned by its angle."""
    out = x.astype(np.float64).reshape(x.shape[0], num_heads, -1).copy()
    half = rotary_dim // 2
    for i in range(half):
        a, b = (2 * i, 2 * i + 1) if interleaved else (i, i + half)
        turned = (out[:, :, a] + 1j * out[:, :, b]) * np.exp(1j * angles[:, i].astype(np.float64))[
            :, None
        ]
        out[:, :, a], out[:, :, b] = turned.real, turned.imag
    return out.reshape(x.shape)


def silu(x: Floats) -> Doubles:
    x = x.astype(np.float64)
    return x / (1 + np.exp(-x))


def gelu_tanh(x: Floats) -> Doubles:
    x = x.astype(np.float64)
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def relu(x: Floats) -> Doubles:
    return np.maximum(x.astype(np.float64), 0)


def attention(
    q: Floats,
    k: Floats,
    v: Floats,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> Doubles:
    """One request: its last len(q) rows over its whole context.

    Args:
        q: [rows, Hq, D].
        k, v: [context, Hkv, D].

    Source: Vaswani et al. 2017, eq. 1; grouped heads: Ainslie et al. 2023, section 2.2.
    """
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    out, group = np.zeros(q.shape), q.shape[1] // k.shape[1]
    for row in range(len(q)):
        end = len(k) - len(q) + row + 1
        begin = 0 if window is None else max(0, end - window)
        for head in range(q.shape[1]):
            scores = scale * k[begin:end, head // group] @ q[row, head]
            if softcap is not None:
                scores = softcap * np.tanh(scores / softcap)
            weights = np.exp(scores - scores.max())
            out[row, head] = weights @ v[begin:end, head // group] / weights.sum()
    return out
