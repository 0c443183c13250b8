"""What sampling means, in NumPy and float64. Shares nothing with the native code that it judges."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kokuban.core.sampling_params import SamplingParams

Doubles = NDArray[np.float64]
Ints = NDArray[np.int64]

SMALLEST_LOG_WEIGHT = -87.0
"""A token less likely than e^-87 times the most likely one is never drawn."""


def adjusted(
    logits: Sequence[float] | NDArray[np.float32],
    params: SamplingParams,
    *,
    prompt: Sequence[int] = (),
    output: Sequence[int] = (),
    end_ids: Sequence[int] = (),
) -> Doubles:
    """Logits after penalties, biases and the mask of min_tokens."""
    x = np.array(logits, np.float64)
    for token in set(prompt) | set(output):
        penalty = params.repetition_penalty
        x[token] = x[token] / penalty if x[token] > 0 else x[token] * penalty
    for token in output:
        x[token] -= params.frequency_penalty
    for token in set(output):
        x[token] -= params.presence_penalty
    for token, bias in params.logit_bias.items():
        x[token] += bias
    if len(output) < params.min_tokens:
        x[list(end_ids)] = -np.inf
    return x


def kept(x: Doubles, params: SamplingParams) -> Ints:
    """Ids that may be drawn, ascending."""
    order = np.lexsort((np.arange(len(x)), -x))  # by logit, descending; then by id
    if params.temperature == 0:
        return order[:1]
    if params.top_k > 0:
        order = order[: params.top_k]
    weights = _weights(x, params)[order]
    possible = (weights >= params.min_p) & (weights > 0)
    order, weights = order[possible], weights[possible]
    if params.top_p < 1:
        share = np.cumsum(weights) / weights.sum()
        order = order[: np.searchsorted(share, params.top_p) + 1]
    return np.sort(order)


def draw(x: Doubles, params: SamplingParams, u: float) -> int:
    """The first kept id at which the running sum of weights exceeds u times their sum."""
    ids = kept(x, params)
    if params.temperature == 0:
        return int(ids[0])
    sums = np.cumsum(_weights(x, params)[ids])
    return int(ids[np.searchsorted(sums, u * sums[-1], side="right")])


def log_softmax(logits: NDArray[np.float32]) -> Doubles:
    """Natural logarithms of the probabilities of one row."""
    shifted = logits.astype(np.float64) - logits.max()
    result: Doubles = shifted - np.log(np.exp(shifted).sum())
    return result


def philox4x32(counter: Sequence[int], key: Sequence[int]) -> list[int]:
    """Ten rounds of Philox4x32. Source: Salmon et al., SC 2011, section 3.3."""
    c, k = list(counter), list(key)
    for _ in range(10):
        left, right = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [
            (right >> 32) ^ c[1] ^ k[0],
            right % 2**32,
            (left >> 32) ^ c[3] ^ k[1],
            left % 2**32,
        ]
        k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
    return c


def uniform(seed: int, choice: int, position: int) -> float:
    """In [0, 1), from the upper 53 of the first 64 bits."""
    seed %= 2**64
    words = philox4x32((position % 2**32, position >> 32, choice, 0), (seed % 2**32, seed >> 32))
    return ((words[1] << 32 | words[0]) >> 11) / 2**53


def _weights(x: Doubles, params: SamplingParams) -> Doubles:
    y = (x - x.max()) / params.temperature
    result: Doubles = np.where(y >= SMALLEST_LOG_WEIGHT, np.exp(y), 0.0)
    return result
