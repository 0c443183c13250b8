"""What kernels mean, in NumPy and float64. The judge of `bench kernels`.

It shares no code, no layout and no order of sums with what it judges.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]
Doubles = NDArray[np.float64]


def relative_error(found: Floats, exact: Doubles, size: Doubles | float) -> float:
    """The largest distance between a result and the truth, in units of `size`; NaN if there is a
    NaN that should not be there."""
    found = found.astype(np.float64)
    if not np.isfinite(found).all():
        return float("nan")
    return float(np.max(np.abs(found - exact) / size, initial=0.0))


def linear(weights: Floats, x: Floats) -> tuple[Doubles, Doubles]:
    """x · Wᵀ, and the same of magnitudes: the scale against which rounding is measured.

    Args:
        weights: [n, k].
        x: [T, k].
    """
    w, a = weights.astype(np.float64), x.astype(np.float64)
    return a @ w.T, np.abs(a) @ np.abs(w.T) + np.finfo(np.float64).tiny


def round_to_int8(x: Floats, group: int) -> Doubles:
    """x as products with quantised weights see it: runs of `group` elements as 8-bit codes times
    their largest magnitude / 127, codes rounded to even from float32 quotients."""
    runs = x.astype(np.float32).reshape(len(x), -1, group)
    largest = np.abs(runs).max(axis=2, keepdims=True)
    inverse = np.divide(np.float32(127), largest, out=np.zeros_like(largest), where=largest > 0)
    codes = np.rint(runs * inverse).astype(np.float64)
    values: Doubles = codes * (largest / np.float32(127)).astype(np.float64)
    return values.reshape(x.shape)


def attention(
    q: Floats, k: Floats, v: Floats, *, scale: float, window: int | None = None
) -> Doubles:
    """The last rows of one request over its context.

    Args:
        q: [T, Hq, D].
        k, v: [context, Hkv, D].

    Source: Vaswani et al. 2017, eq. 1; grouped heads: Ainslie et al. 2023, section 2.2.
    """
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    at = np.arange(len(k) - len(q), len(k))[:, None]
    keys = np.arange(len(k))[None, :]
    hidden = (keys > at) if window is None else (keys > at) | (keys <= at - window)
    scores = scale * np.einsum("thd,chd->htc", q, k)
    scores[:, hidden] = -np.inf
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    sums = weights.sum(axis=2).T[:, :, None]
    out: Doubles = np.einsum("htc,chd->thd", weights, v) / sums
    return out


def rms_norm(x: Floats, weight: Floats, eps: float) -> Doubles:
    """Zhang and Sennrich 2019, eq. 4."""
    x = x.astype(np.float64)
    norm: Doubles = x / np.sqrt((x**2).mean(axis=1, keepdims=True) + eps) * weight
    return norm


def rope(x: Floats, angles: Doubles, num_heads: int) -> Doubles:
    """Pairs (i, i + D / 2) of each head as complex numbers, turned.

    Args:
        angles: [T, D / 2], radians.
    """
    heads = x.astype(np.float64).reshape(len(x), num_heads, -1)
    half = heads.shape[2] // 2
    turned = (heads[:, :, :half] + 1j * heads[:, :, half:]) * np.exp(1j * angles)[:, None]
    return np.concatenate([turned.real, turned.imag], axis=2).reshape(x.shape)


def gated(kind: Literal["silu", "gelu_tanh"], gate: Floats, up: Floats) -> Doubles:
    """activation(gate) * up."""
    g = gate.astype(np.float64)
    inner = np.sqrt(2 / np.pi) * (g + 0.044715 * g**3)
    active = g / (1 + np.exp(-g)) if kind == "silu" else g / 2 * (1 + np.tanh(inner))
    out: Doubles = active * up.astype(np.float64)
    return out


def draw_error(
    logits: Floats, token: int, u: float, *, temperature: float, top_k: int, top_p: float
) -> float:
    """How far the number u lies outside the share that a drawn token has of the kept ones.

    Kept are the top_k likeliest tokens, of them the fewest that hold top_p of the probability; they
    lie in order of their ids. 1 for a token that is not kept.

    Args:
        logits: [V].
        u: from 0 to 1.
    """
    x = logits.astype(np.float64)
    order = np.lexsort((np.arange(len(x)), -x))[: top_k or None]
    weights = np.exp((x[order] - x.max()) / temperature)
    share = np.cumsum(weights) / weights.sum()
    kept = np.sort(order[: int(np.searchsorted(share, top_p)) + 1])
    if token not in kept:
        return 1.0
    sums = np.cumsum(np.exp((x[kept] - x.max()) / temperature))
    sums /= sums[-1]
    at = int(np.searchsorted(kept, token))
    below = float(sums[at - 1]) if at else 0.0
    return max(below - u, u - float(sums[at]), 0.0)
