"""What the native sampler does to single rows: penalties, biases, logprobs, errors, same bits."""

import numpy as np
import pytest
from tests.kernels import reference_sampling as reference
from tests.kernels.sampling_cases import (
    FILTERS,
    LARGEST_VOCAB,
    VARIANTS,
    assert_same,
    one_row,
    random_logits,
    sample_one,
)

import kokuban._native as _native
from kokuban.core.env import ISA_LEVELS
from kokuban.core.sampling_params import SamplingParams
from kokuban.kernels import sampling
from kokuban.kernels.sampling import SamplingRow, sample_rows, score_rows


@pytest.fixture(params=VARIANTS, ids=lambda level: ISA_LEVELS[level])
def isa(request: pytest.FixtureRequest) -> int:
    level: int = request.param
    return level


# Penalties, biases, min_tokens


@pytest.mark.parametrize(
    ("params", "token"),
    [
        (SamplingParams(temperature=0, presence_penalty=2.0), 0),
        (SamplingParams(temperature=0, frequency_penalty=2.0), 0),
        (SamplingParams(temperature=0, repetition_penalty=1.5), 1),
    ],
    ids=["presence", "frequency", "repetition"],
)
def test_only_the_repetition_penalty_sees_the_prompt(
    isa: int, params: SamplingParams, token: int
) -> None:
    """B18: `a` 1.0 and `b` 0.97 with `a` in the prompt alone."""
    row = SamplingRow(params, prompt_token_ids=[0, 2])

    assert token == sample_one(one_row([1.0, 0.97, 0.0]), row, isa)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(repetition_penalty=1.7),
        SamplingParams(repetition_penalty=0.3),
        SamplingParams(presence_penalty=1.5),
        SamplingParams(frequency_penalty=-1.1),
        SamplingParams(repetition_penalty=1.2, presence_penalty=-0.4, frequency_penalty=0.7),
        SamplingParams(logit_bias={3: 9.0, 60: -100.0, 299: 100.0}),
        SamplingParams(frequency_penalty=0.5, logit_bias={3: 4.0, 5: 2.0}, min_tokens=100),
    ],
    ids=range(7),
)
def test_adjusted_logits_give_the_tokens_of_the_reference(isa: int, params: SamplingParams) -> None:
    logits = random_logits(1, 300, seed=4)
    history = {"prompt": [3, 3, 5, 9, 299], "output": [5, 5, 5, 8, 3, 60]}
    exact = reference.adjusted(logits[0], params, **history, end_ids=[60, 61])

    for seed in range(30):
        row = SamplingRow(
            params,
            seed=seed,
            end_token_ids=[60, 61],
            prompt_token_ids=history["prompt"],
            output_token_ids=history["output"],
        )
        expected = reference.draw(exact, params, reference.uniform(seed, 0, 6))
        assert expected == sample_one(logits, row, isa)


def test_logits_are_put_back_after_sampling(isa: int) -> None:
    logits = random_logits(2, 300)
    before = logits.copy()
    params = SamplingParams(
        repetition_penalty=1.5, presence_penalty=1, logit_bias={5: 3.0, 7: 1.0}, min_tokens=9
    )
    row = SamplingRow(
        params, end_token_ids=[5, 6], prompt_token_ids=[1, 5], output_token_ids=[5, 7]
    )

    sample_rows(logits, [row, row], isa_cap=isa)

    np.testing.assert_array_equal(before, logits)


def test_a_bias_of_100_forces_a_token_and_one_of_minus_100_forbids_it(isa: int) -> None:
    logits = random_logits(1, 500)
    best, worst = int(logits.argmax()), int(logits.argmin())
    second = int(np.argsort(logits[0])[-2])

    forced = SamplingRow(SamplingParams(logit_bias={worst: 100.0}), seed=1)
    forbidden = SamplingRow(SamplingParams(temperature=0, logit_bias={best: -100.0}))

    assert worst == sample_one(logits, forced, isa)
    assert second == sample_one(logits, forbidden, isa)


def test_end_tokens_are_impossible_before_min_tokens(isa: int) -> None:
    """B87: `min_tokens` new tokens first, then the end token that the model wants."""
    logits = one_row([0.0, 5.0, 9.0, 8.0])
    row = SamplingRow(SamplingParams(temperature=0, min_tokens=2), end_token_ids=[2, 3])
    tokens = []

    for _ in range(3):
        tokens.append(sample_one(logits, row, isa))
        row.append(tokens[-1])

    assert tokens == [1, 1, 2]


def test_ids_outside_the_vocabulary_have_no_effect(isa: int) -> None:
    """B27: such a bias is refused long before; here it must not write anywhere."""
    logits = random_logits(1, 64)
    params = SamplingParams(
        temperature=0,
        repetition_penalty=2,
        logit_bias={64: 9.0, -1: 9.0, 2**40: 9.0, 10**6: 1.0},
        min_tokens=5,
    )
    row = SamplingRow(
        params, end_token_ids=[64, -7, 2**31 - 1], prompt_token_ids=[64, 900], output_token_ids=[77]
    )

    assert int(logits.argmax()) == sample_one(logits, row, isa)


@pytest.mark.parametrize("penalty", [1e-46, 1e-38, 10.0])
def test_extreme_repetition_penalties_keep_logits_finite(isa: int, penalty: float) -> None:
    logits = one_row([3e38, -3e38, 0.0, 1.0])
    row = SamplingRow(
        SamplingParams(temperature=0, repetition_penalty=penalty), prompt_token_ids=[0, 1, 2, 3]
    )

    assert sample_one(logits, row, isa) == 0


# Logprobs


@pytest.mark.parametrize("vocab", [1, 19, 1000, 49_152, LARGEST_VOCAB])
def test_logprobs_are_those_of_the_raw_logits(isa: int, vocab: int) -> None:
    """Whatever the penalties and filters. float32 weights: 1e-6 of their sum, 1e-6 of the log."""
    logits = random_logits(1, vocab, seed=1)
    expected = reference.log_softmax(logits[0])
    best = np.lexsort((np.arange(vocab), -logits[0]))[:20]
    params = SamplingParams(
        logprobs=20, temperature=0.5, top_k=5, presence_penalty=2.0, logit_bias={0: 3.0}
    )
    row = SamplingRow(params, output_token_ids=[int(best[0])])

    found = sample_rows(logits, [row], isa_cap=isa)

    assert found.top_counts.tolist() == [len(best)]
    np.testing.assert_array_equal(best, found.top_ids[0, : len(best)])
    np.testing.assert_allclose(
        expected[best], found.top_logprobs[0, : len(best)], rtol=1e-6, atol=2e-6
    )
    np.testing.assert_allclose(expected[found.tokens], found.logprobs, rtol=1e-6, atol=2e-6)


def test_equal_logprobs_are_listed_by_id_and_impossible_tokens_not_at_all(isa: int) -> None:
    logits = np.full((1, 300), -np.inf, np.float32)
    logits[0, [250, 3, 40]] = 0.0
    row = SamplingRow(SamplingParams(temperature=0, logprobs=5))

    found = sample_rows(logits, [row], isa_cap=isa)

    assert found.top_counts.tolist() == [3]
    assert found.top_ids[0, :3].tolist() == [3, 40, 250]
    np.testing.assert_allclose(np.log([1 / 3] * 3), found.top_logprobs[0, :3], rtol=1e-6)


def test_rows_may_want_different_numbers_of_logprobs(isa: int) -> None:
    logits = random_logits(3, 100)
    wanted = [None, 0, 4]
    rows = [SamplingRow(SamplingParams(temperature=0, logprobs=n)) for n in wanted]

    found = sample_rows(logits, rows, isa_cap=isa)

    assert found.top_counts.tolist() == [0, 0, 4]
    assert found.top_ids.shape == (3, 4)
    assert (found.logprobs < 0).tolist() == [False, True, True]


def test_scoring_gives_the_logprobs_of_the_targets(isa: int) -> None:
    logits = random_logits(5, 777, seed=6)
    before = logits.copy()
    targets = [0, 776, 5, 128, 127]

    found = score_rows(logits, targets, [0, 1, 2, 20, 3], isa_cap=isa)

    expected = [reference.log_softmax(row)[t] for row, t in zip(logits, targets, strict=True)]
    np.testing.assert_allclose(expected, found.logprobs, rtol=1e-6, atol=2e-6)
    assert found.top_counts.tolist() == [0, 1, 2, 20, 3]
    np.testing.assert_array_equal(np.argsort(-logits[3])[:20], found.top_ids[3])
    assert found.tokens.tolist() == targets
    np.testing.assert_array_equal(before, logits)


def test_a_target_among_the_padding_is_compared_with_the_valid_tokens(isa: int) -> None:
    """A prompt may hold an id that no tokenizer makes; it must not fail the whole step."""
    logits = np.zeros((2, 200), np.float32)
    logits[0, 199] = 1.0
    logits[1, 199] = np.nan

    found = score_rows(logits, [199, 199], 1, valid_vocab=100, isa_cap=isa)

    assert found.status.tolist() == [sampling.OK, sampling.NOT_FINITE]
    assert found.logprobs[0] == pytest.approx(1 - np.log(100), abs=1e-6)
    assert found.top_ids[0].tolist() == [0]


# Errors of one row


@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf])
@pytest.mark.parametrize("where", [0, 15, 130, 299])
def test_a_logit_that_is_not_finite_fails_its_row_alone(isa: int, bad: float, where: int) -> None:
    logits = random_logits(3, 300)
    logits[1, where] = bad
    params = SamplingParams(temperature=0, logprobs=1, logit_bias={where: -100.0})
    rows = [SamplingRow(params)] * 3

    sampled = sample_rows(logits, rows, isa_cap=isa)
    scored = score_rows(logits, [1, 1, 1], 1, isa_cap=isa)

    expected = [sampling.OK, sampling.NOT_FINITE, sampling.OK]
    assert expected == sampled.status.tolist()
    assert expected == scored.status.tolist()
    assert (sampled.tokens[1], sampled.top_counts[1]) == (-1, 0)
    assert sampled.tokens[0] >= 0
    assert sampled.tokens[2] >= 0


def test_a_row_without_any_possible_token_fails(isa: int) -> None:
    logits = np.zeros((2, 40), np.float32)
    logits[0] = -np.inf

    found = sample_rows(logits, [SamplingRow(SamplingParams())] * 2, isa_cap=isa)

    assert found.status.tolist() == [sampling.NO_TOKEN, sampling.OK]


def test_a_vocabulary_of_one_end_token_fails_before_min_tokens_and_works_after(isa: int) -> None:
    logits = np.zeros((1, 1), np.float32)
    row = SamplingRow(SamplingParams(min_tokens=1), end_token_ids=[0])

    assert sample_rows(logits, [row], isa_cap=isa).status.tolist() == [sampling.NO_TOKEN]
    row.append(0)
    assert sample_rows(logits, [row], isa_cap=isa).tokens.tolist() == [0]
    assert logits[0, 0] == 0.0


# Same bits everywhere


def mixed_rows() -> list[SamplingRow]:
    rows = []
    for i, params in enumerate(FILTERS.values()):
        rows.append(SamplingRow(params, seed=i))
        rows.append(
            SamplingRow(
                SamplingParams(
                    temperature=params.temperature,
                    top_k=params.top_k,
                    top_p=params.top_p,
                    repetition_penalty=1.3,
                    logprobs=i,
                ),
                seed=i,
                output_token_ids=range(i * 20),
            )
        )
    return rows


@pytest.mark.parametrize("vocab", [100, 3001, 49_152])
def test_all_variants_give_the_same_bits(vocab: int) -> None:
    rows = mixed_rows()
    logits = random_logits(len(rows), vocab, seed=9)
    scalar = sample_rows(logits, rows, isa_cap=0)

    for level in VARIANTS[1:]:
        assert_same(scalar, sample_rows(logits, rows, isa_cap=level))


def test_batch_and_threads_change_nothing(isa: int) -> None:
    rows = mixed_rows()
    logits = random_logits(len(rows), 3001, seed=10)
    together = sample_rows(logits, rows, isa_cap=isa)

    for threads in (1, 2, 3):
        pool = _native.ThreadPool(threads)
        assert_same(together, sample_rows(logits, rows, pool=pool, isa_cap=isa))
    for r, row in enumerate(rows):
        alone = sample_rows(logits[r : r + 1].copy(), [row], isa_cap=isa)
        assert together.tokens[r] == alone.tokens[0]
        assert together.logprobs[r] == alone.logprobs[0]


# Contract


def test_wrong_arguments_are_refused() -> None:
    logits = random_logits(2, 50)
    rows = [SamplingRow(SamplingParams())] * 2

    with pytest.raises(ValueError, match="1 sampling rows for 2 rows of logits"):
        sample_rows(logits, rows[:1])
    with pytest.raises(ValueError, match="logits are float64 of shape"):
        sample_rows(logits.astype(np.float64), rows)
    with pytest.raises(ValueError, match="without gaps"):
        sample_rows(logits[:, :40], rows)
    with pytest.raises(ValueError, match="valid_vocab=51 is not between 1 and 50"):
        sample_rows(logits, rows, valid_vocab=51)
    with pytest.raises(ValueError, match="a target id is not between 0 and 49"):
        score_rows(logits, [1, 50], 0, valid_vocab=40)
    with pytest.raises(ValueError, match="target_ids has shape"):
        score_rows(logits, [1], 0)


def test_no_rows_give_no_results() -> None:
    logits = np.empty((0, 50), np.float32)

    assert sample_rows(logits, []).tokens.shape == (0,)
    assert score_rows(logits, [], 3).tokens.shape == (0,)
