"""The native sampler against float64: random numbers, greedy, filters, frequencies."""

from collections import Counter

import numpy as np
import pytest
from tests.kernels import reference_sampling as reference
from tests.kernels.sampling_cases import (
    FILTERS,
    LARGEST_VOCAB,
    VARIANTS,
    kept_set,
    one_row,
    random_logits,
    sample_one,
)

import kokuban._native as _native
from kokuban.core.env import ISA_LEVELS
from kokuban.core.sampling_params import SamplingParams
from kokuban.kernels import sampling
from kokuban.kernels.sampling import SamplingRow, kept_tokens, sample_rows


@pytest.fixture(params=VARIANTS, ids=lambda level: ISA_LEVELS[level])
def isa(request: pytest.FixtureRequest) -> int:
    level: int = request.param
    return level


# Random numbers


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ([0] * 4, [0] * 2, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ([2**32 - 1] * 4, [2**32 - 1] * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
    ids=["zeros", "ones", "digits of pi"],
)
def test_philox_gives_the_published_words(counter: list[int], key: list[int], words: str) -> None:
    """Vectors: kat_vectors of Random123, philox4x32 with 10 rounds."""
    expected = [int(word, 16) for word in words.split()]

    assert expected == _native.philox4x32(counter, key)
    assert expected == reference.philox4x32(counter, key)


@pytest.mark.parametrize("seed", [0, 7, -1, 2**63 - 1, -(2**63)])
@pytest.mark.parametrize(("choice", "position"), [(0, 0), (3, 1), (127, 2**32 + 5)])
def test_a_uniform_number_is_a_function_of_seed_choice_and_position(
    seed: int, choice: int, position: int
) -> None:
    expected = reference.uniform(seed, choice, position)

    assert expected == sampling.uniform(seed, choice, position)
    assert 0 <= expected < 1


def test_a_row_draws_with_its_own_seed_choice_and_position() -> None:
    """With equal logits and 1024 ids, the token is the number's first ten bits."""
    logits = np.zeros((1, 1024), np.float32)

    for seed, choice, length in [(1, 0, 0), (1, 0, 9), (1, 2, 0), (-5, 0, 0)]:
        row = SamplingRow(SamplingParams(), seed=seed, choice=choice, output_token_ids=[4] * length)
        assert int(reference.uniform(seed, choice, length) * 1024) == sample_one(logits, row)


def test_appending_tokens_equals_starting_again_with_them() -> None:
    """Preemption rebuilds the row from the output: the same tokens must follow."""
    logits = random_logits(1, 300, scale=1)
    params = SamplingParams(
        presence_penalty=0.5, frequency_penalty=0.25, repetition_penalty=1.2, top_p=0.9
    )
    grown = SamplingRow(params, seed=11, prompt_token_ids=[1, 2, 3])
    output: list[int] = []

    for _ in range(40):
        fresh = SamplingRow(params, seed=11, prompt_token_ids=[1, 2, 3], output_token_ids=output)
        token = sample_one(logits, grown)
        assert token == sample_one(logits, fresh)
        output.append(token)
        grown.append(token)

    assert grown.num_output == 40
    assert len(set(output)) > 10


# Greedy


@pytest.mark.parametrize("vocab", [1, 2, 15, 16, 17, 127, 128, 129, 1000, LARGEST_VOCAB])
def test_greedy_takes_the_largest_logit(isa: int, vocab: int) -> None:
    logits = random_logits(3, vocab)
    rows = [SamplingRow(SamplingParams(temperature=0))] * 3

    found = sample_rows(logits, rows, isa_cap=isa)

    np.testing.assert_array_equal(logits.argmax(axis=1), found.tokens)


@pytest.mark.parametrize("where", [0, 1, 15, 16, 127, 128, 255, 499])
def test_greedy_takes_the_lowest_id_among_equals(isa: int, where: int) -> None:
    logits = np.full((1, 500), -3.0, np.float32)
    logits[0, where:] = -1.0

    assert where == sample_one(logits, SamplingRow(SamplingParams(temperature=0)), isa)


def test_zero_and_minus_zero_are_equal_logits(isa: int) -> None:
    logits = one_row([-1.0, -0.0, -0.0, 0.0])

    assert sample_one(logits, SamplingRow(SamplingParams(temperature=0)), isa) == 1
    assert kept_set(logits, SamplingParams(top_k=2), isa) == [1, 2]


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(top_k=1),
        SamplingParams(top_p=1e-9),
        SamplingParams(temperature=1e-5),
        SamplingParams(temperature=1e-320),
        SamplingParams(top_k=5, top_p=1e-300),
    ],
    ids=lambda params: f"T{params.temperature} k{params.top_k} p{params.top_p}",
)
def test_narrow_parameters_equal_greedy(isa: int, params: SamplingParams) -> None:
    logits = random_logits(1, 2000, scale=100)
    logits[0, 1500:1502] = 1000.0
    if params.temperature < 1:
        logits[0, 1501] = 999.0

    for seed in range(20):
        assert sample_one(logits, SamplingRow(params, seed=seed), isa) == 1500


def test_the_largest_finite_logits_do_not_overflow(isa: int) -> None:
    largest = float(np.finfo(np.float32).max)
    logits = one_row([-largest, largest, largest, 0.0])

    kept = kept_set(logits, SamplingParams(temperature=1e-5), isa)

    assert kept == [1, 2]


# Filters


@pytest.mark.parametrize("vocab", [1, 33, 1000, 49_152])
@pytest.mark.parametrize("params", FILTERS.values(), ids=FILTERS)
def test_the_kept_tokens_are_those_of_the_reference(
    isa: int, params: SamplingParams, vocab: int
) -> None:
    logits = random_logits(1, vocab, seed=vocab)

    expected = reference.kept(logits[0].astype(np.float64), params)

    assert expected.tolist() == kept_set(logits, params, isa)


@pytest.mark.parametrize("params", FILTERS.values(), ids=FILTERS)
def test_the_token_drawn_is_the_one_of_the_reference(isa: int, params: SamplingParams) -> None:
    """40 seeds each: float32 sums could differ from float64 only within 1e-6 of a border."""
    logits = random_logits(1, 5000, seed=5, scale=2)
    exact = logits[0].astype(np.float64)

    for seed in range(40):
        expected = reference.draw(exact, params, reference.uniform(seed, 0, 0))
        assert expected == sample_one(logits, SamplingRow(params, seed=seed), isa)


def test_top_k_keeps_lower_ids_among_equals(isa: int) -> None:
    logits = np.zeros((1, 1000), np.float32)
    logits[0, 900] = 1.0

    assert kept_set(logits, SamplingParams(top_k=4), isa) == [0, 1, 2, 900]


@pytest.mark.parametrize(("top_p", "count"), [(0.5, 4), (0.51, 5), (0.125, 1), (0.9999, 8)])
def test_top_p_keeps_the_fewest_tokens_that_reach_it(isa: int, top_p: float, count: int) -> None:
    """Eight equal tokens: each holds exactly one eighth, and the lower ids come first."""
    logits = np.full((1, 20), -np.inf, np.float32)
    logits[0, 3:11] = 2.5

    expected = list(range(3, 3 + count))

    assert expected == kept_set(logits, SamplingParams(top_p=top_p), isa)


def test_top_p_refers_to_what_top_k_and_min_p_leave(isa: int) -> None:
    """Probabilities 0.5 0.25 0.125 and many small ones: 0.6 of the first two is the first alone."""
    logits = np.log(np.array([[0.5, 0.25, 0.125] + [0.125 / 97] * 97], np.float32))

    assert kept_set(logits, SamplingParams(top_p=0.6), isa) == [0, 1]
    assert kept_set(logits, SamplingParams(top_p=0.6, top_k=2), isa) == [0]
    assert kept_set(logits, SamplingParams(top_p=0.6, min_p=0.4), isa) == [0]


def test_min_p_keeps_equals_of_the_most_likely_token_only_at_1(isa: int) -> None:
    logits = one_row([1.0, 3.0, 2.9999, 3.0])

    assert kept_set(logits, SamplingParams(min_p=1.0), isa) == [1, 3]


def test_equal_logits_over_the_largest_vocabulary_keep_the_first_ids(isa: int) -> None:
    logits = np.full((1, LARGEST_VOCAB), 0.25, np.float32)

    kept = kept_tokens(logits, SamplingRow(SamplingParams(top_p=0.5)), isa_cap=isa)

    np.testing.assert_array_equal(np.arange(LARGEST_VOCAB // 2), kept)


@pytest.mark.parametrize("params", FILTERS.values(), ids=FILTERS)
def test_the_largest_vocabulary_gives_the_token_of_the_reference(params: SamplingParams) -> None:
    logits = random_logits(1, LARGEST_VOCAB, seed=8)

    expected = reference.draw(logits[0].astype(np.float64), params, reference.uniform(3, 0, 0))

    assert expected == sample_one(logits, SamplingRow(params, seed=3))


def test_impossible_tokens_are_never_drawn(isa: int) -> None:
    logits = np.full((1, 400), -np.inf, np.float32)
    logits[0, [7, 399]] = [0.0, -1.0]

    for params in (SamplingParams(), SamplingParams(top_k=300), SamplingParams(top_p=0.9999)):
        drawn = {sample_one(logits, SamplingRow(params, seed=s), isa) for s in range(40)}
        assert drawn == {7, 399}


def test_padding_of_the_vocabulary_is_neither_sampled_nor_counted(isa: int) -> None:
    logits = np.full((1, 200), 1.0, np.float32)
    logits[0, 130:] = 50.0
    row = SamplingRow(SamplingParams(temperature=0, logprobs=3))

    found = sample_rows(logits, [row], valid_vocab=130, isa_cap=isa)

    assert found.tokens.tolist() == [0]
    assert found.top_ids.tolist() == [[0, 1, 2]]
    assert found.logprobs[0] == pytest.approx(-np.log(130), abs=1e-6)


# Frequencies


@pytest.mark.parametrize(
    "params",
    [SamplingParams(), SamplingParams(temperature=0.6), SamplingParams(top_k=12, top_p=0.9)],
    ids=["plain", "cool", "filtered"],
)
def test_frequencies_match_the_distribution(params: SamplingParams) -> None:
    """Chi-square over 8,000 seeds: below its mean by four standard deviations, and always so."""
    vocab, draws = 40, 8000
    logits = random_logits(1, vocab, seed=2, scale=1)
    exact = logits[0].astype(np.float64)
    ids = reference.kept(exact, params)
    weights = np.exp(exact[ids] / params.temperature)
    expected = draws * weights / weights.sum()

    found = sample_rows(
        np.repeat(logits, draws, axis=0), [SamplingRow(params, seed=s) for s in range(draws)]
    )

    counts = Counter(found.tokens.tolist())
    assert set(counts) <= set(ids.tolist())
    observed = np.array([counts[i] for i in ids.tolist()])
    chi_square = ((observed - expected) ** 2 / expected).sum()
    degrees = len(ids) - 1
    assert chi_square < degrees + 4 * np.sqrt(2 * degrees)


def test_positions_and_choices_of_one_seed_are_independent_draws() -> None:
    """B29: n children of one request must not all say the same."""
    logits = np.zeros((1, 2), np.float32)
    texts = set()
    ones = 0

    for choice in range(4):
        row = SamplingRow(SamplingParams(), seed=7, choice=choice)
        text = []
        for _ in range(500):
            text.append(sample_one(logits, row))
            row.append(text[-1])
        ones += sum(text)
        texts.add(tuple(text))

    assert len(texts) == 4
    assert abs(ones - 1000) < 4 * np.sqrt(500)  # 2,000 fair coins: the deviation is sqrt(500)
