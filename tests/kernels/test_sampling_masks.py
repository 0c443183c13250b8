"""Masks in the native sampler: what they do not allow is never sampled; nothing else changes."""

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.kernels.sampling_cases import FILTERS, VARIANTS, assert_same, random_logits

from kokuban.core.env import ISA_LEVELS
from kokuban.core.sampling_params import SamplingParams
from kokuban.kernels import sampling
from kokuban.kernels.native import make_threads
from kokuban.kernels.sampling import RowMasks, SamplingRow, sample_rows

PARAMS = [
    SamplingParams(temperature=0),
    SamplingParams(temperature=0, logit_bias={3: 100.0}, frequency_penalty=0.5),
    *FILTERS.values(),
]


@pytest.fixture(params=VARIANTS, ids=lambda level: ISA_LEVELS[level])
def isa(request: pytest.FixtureRequest) -> int:
    level: int = request.param
    return level


def words_of(allowed: NDArray[np.bool_]) -> NDArray[np.uint32]:
    """[M, V] bool as bits, with ones behind the last token."""
    num, vocab = allowed.shape
    bits = np.ones((num, -(-vocab // 32) * 32), np.uint8)
    bits[:, :vocab] = allowed
    return np.packbits(bits, axis=1, bitorder="little").view(np.uint32)


@pytest.mark.parametrize("vocab", [1, 5, 16, 31, 32, 33, 129, 1000])
@pytest.mark.parametrize("share", [0.02, 0.5, 0.98])
def test_a_mask_is_logits_of_minus_infinity(isa: int, vocab: int, share: float) -> None:
    rng = np.random.default_rng(vocab)
    allowed = rng.random((len(PARAMS), vocab)) < share
    allowed[:, rng.integers(vocab)] = True
    logits = random_logits(len(PARAMS), vocab, seed=vocab)
    rows = [SamplingRow(params, seed=7, output_token_ids=[0]) for params in PARAMS]
    of = np.arange(len(PARAMS), dtype=np.int32)

    found = sample_rows(logits.copy(), rows, masks=RowMasks(words_of(allowed), of), isa_cap=isa)
    ruled_out = np.where(allowed, logits, -np.inf).astype(np.float32)
    expected = sample_rows(ruled_out, rows, isa_cap=isa)

    assert found.status.tolist() == [sampling.OK] * len(PARAMS)
    assert found.tokens.tolist() == expected.tokens.tolist()


def test_logprobs_are_those_without_the_mask_and_logits_come_back(isa: int) -> None:
    logits = random_logits(1, 300, seed=2)
    allowed = np.zeros((1, 300), bool)
    allowed[0, 7] = True
    params = SamplingParams(temperature=0, logprobs=3)
    before = logits.copy()

    masks = RowMasks(words_of(allowed), np.zeros(1, np.int32))
    found = sample_rows(logits, [SamplingRow(params)], masks=masks, isa_cap=isa)
    free = sample_rows(logits, [SamplingRow(params)], isa_cap=isa)

    shifted = before[0].astype(np.float64) - before.max()
    assert found.tokens.tolist() == [7]
    assert found.logprobs[0] == pytest.approx(shifted[7] - np.log(np.exp(shifted).sum()), abs=1e-5)
    np.testing.assert_array_equal(found.top_ids, free.top_ids)
    np.testing.assert_array_equal(logits, before)


def test_rows_without_a_mask_and_rows_that_share_one_do_not_touch_each_other(isa: int) -> None:
    logits = random_logits(4, 200, seed=3)
    allowed = np.random.default_rng(4).random((2, 200)) < 0.3
    of = np.array([1, -1, 0, 1], np.int32)
    rows = [SamplingRow(SamplingParams(logprobs=2), seed=seed) for seed in range(4)]

    together = sample_rows(
        logits.copy(),
        rows,
        masks=RowMasks(words_of(allowed), of),
        pool=make_threads(2),
        isa_cap=isa,
    )

    for r in range(4):
        masks = None
        if of[r] >= 0:
            masks = RowMasks(words_of(allowed[of[r], None]), np.zeros(1, np.int32))
        alone = sample_rows(logits[r, None].copy(), [rows[r]], masks=masks, isa_cap=isa)
        assert alone.tokens[0] == together.tokens[r]
        assert alone.logprobs[0] == together.logprobs[r]


def test_all_variants_draw_the_same(isa: int) -> None:
    logits = random_logits(len(PARAMS), 4099, seed=5)
    allowed = np.random.default_rng(6).random((1, 4099)) < 0.2
    masks = RowMasks(words_of(allowed), np.zeros(len(PARAMS), np.int32))
    rows = [SamplingRow(params, seed=1) for params in PARAMS]

    found = sample_rows(logits.copy(), rows, masks=masks, isa_cap=isa)

    assert_same(sample_rows(logits.copy(), rows, masks=masks, isa_cap=VARIANTS[0]), found)


def test_a_mask_that_allows_nothing_is_an_error_of_its_row_alone() -> None:
    words = words_of(np.zeros((1, 64), bool))
    masks = RowMasks(words, np.array([0, -1], np.int32))

    found = sample_rows(random_logits(2, 64), [SamplingRow(SamplingParams())] * 2, masks=masks)

    assert found.status.tolist() == [sampling.NO_TOKEN, sampling.OK]


@pytest.mark.parametrize(
    ("words", "of", "problem"),
    [
        (np.zeros((1, 1), np.uint32), [0], "fewer bits"),
        (np.zeros((1, 2), np.uint32), [1], "not there"),
        (np.zeros((1, 2), np.uint32), [0, 0], "one mask for each"),
    ],
)
def test_masks_that_do_not_fit_are_refused(
    words: NDArray[np.uint32], of: list[int], problem: str
) -> None:
    masks = RowMasks(words, np.array(of, np.int32))

    with pytest.raises(ValueError, match=problem):
        sample_rows(random_logits(1, 64), [SamplingRow(SamplingParams())], masks=masks)
