"""What the tests of the sampler share: variants, logits, parameters."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

import kokuban._native as _native
from kokuban.core.env import ISA_LEVELS
from kokuban.core.sampling_params import SamplingParams
from kokuban.kernels import sampling
from kokuban.kernels.sampling import SampledRows, SamplingRow, kept_tokens, sample_rows

Logits = NDArray[np.float32]

VARIANTS = [
    level
    for level in map(ISA_LEVELS.index, ("scalar", "avx2", "avx512vnni"))
    if _native.isa_level(level) == level
]
LARGEST_VOCAB = 262_144


def random_logits(num_rows: int, vocab: int, *, seed: int = 0, scale: float = 3.0) -> Logits:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((num_rows, vocab)) * scale).astype(np.float32)


def one_row(values: Sequence[float]) -> Logits:
    return np.array([values], np.float32)


def sample_one(logits: Logits, row: SamplingRow, isa: int = -1) -> int:
    found = sample_rows(logits, [row], isa_cap=isa)
    assert found.status[0] == sampling.OK
    return int(found.tokens[0])


def kept_set(logits: Logits, params: SamplingParams, isa: int = -1) -> list[int]:
    ids: list[int] = kept_tokens(logits, SamplingRow(params), isa_cap=isa).tolist()
    return ids


def assert_same(expected: SampledRows, actual: SampledRows) -> None:
    np.testing.assert_array_equal(expected.tokens, actual.tokens)
    np.testing.assert_array_equal(expected.status, actual.status)
    np.testing.assert_array_equal(expected.logprobs, actual.logprobs)
    np.testing.assert_array_equal(expected.top_counts, actual.top_counts)
    for r, count in enumerate(expected.top_counts):
        np.testing.assert_array_equal(expected.top_ids[r, :count], actual.top_ids[r, :count])
        np.testing.assert_array_equal(
            expected.top_logprobs[r, :count], actual.top_logprobs[r, :count]
        )


FILTERS = {
    "temperature": SamplingParams(temperature=0.7),
    "hot": SamplingParams(temperature=2.0),
    "top_k": SamplingParams(top_k=40),
    "top_k above the number of blocks": SamplingParams(top_k=700),
    "top_k above the vocabulary": SamplingParams(top_k=10**6),
    "top_p": SamplingParams(top_p=0.9),
    "wide top_p": SamplingParams(top_p=0.999),
    "min_p": SamplingParams(min_p=0.02),
    "top_k and top_p": SamplingParams(top_k=50, top_p=0.8),
    "min_p and top_p": SamplingParams(min_p=0.05, top_p=0.7),
    "min_p and top_k": SamplingParams(min_p=0.1, top_k=10),
    "all": SamplingParams(temperature=1.5, top_k=200, min_p=0.01, top_p=0.95),
    "min_p of 1": SamplingParams(min_p=1.0),
}
