"""Rotary frequencies against transformers' own, and their edges."""

from dataclasses import replace

import numpy as np
import pytest
from tests.golden.goldens import FIXTURES
from tools.tiny_configs import variant_config

from kokuban.core.model_config import RopeConfig
from kokuban.program.rope import inverse_frequencies

with np.load(FIXTURES / "rope.npz") as saved:
    GOLDEN = dict(saved)


@pytest.mark.parametrize("key", GOLDEN)
def test_frequencies_and_factor_equal_those_of_transformers(key: str) -> None:
    """Keeps B75 out: docs/bugbank.md."""
    variant, theta, length = key.split()
    config = replace(variant_config(variant).rope, theta=float(theta))

    frequencies, factor = inverse_frequencies(config, int(length))

    np.testing.assert_allclose([*frequencies, factor], GOLDEN[key], rtol=1e-6, atol=0)


def test_linear_scaling_divides_all_frequencies() -> None:
    plain, _ = inverse_frequencies(RopeConfig(rotary_dim=8), 0)

    scaled, factor = inverse_frequencies(RopeConfig(rotary_dim=8, scaling="linear", factor=4.0), 0)

    assert scaled == [f / 4 for f in plain]
    assert factor == 1.0


def test_a_file_s_own_divisors_are_applied_on_top() -> None:
    frequencies, _ = inverse_frequencies(RopeConfig(rotary_dim=4, freq_factors=(2.0, 8.0)), 0)

    assert frequencies == [0.5, 0.01 / 8]


def test_a_partial_rotation_has_fewer_frequencies() -> None:
    frequencies, _ = inverse_frequencies(RopeConfig(theta=100.0, rotary_dim=4), 0)

    assert frequencies == pytest.approx([1.0, 0.1])


def test_a_stated_attention_factor_wins_over_the_formula() -> None:
    config = RopeConfig(rotary_dim=32, scaling="yarn", factor=4.0, original_max_positions=64)

    assert inverse_frequencies(config, 0)[1] == pytest.approx(1.1386294361)
    assert inverse_frequencies(replace(config, attention_factor=1.0), 0)[1] == 1.0


def test_longrope_takes_the_short_factors_when_no_sequence_is_longer_than_the_original() -> None:
    config = RopeConfig(
        rotary_dim=4,
        theta=100.0,
        scaling="longrope",
        factor=4.0,
        original_max_positions=32,
        short_factors=(1.0, 2.0),
        long_factors=(1.0, 5.0),
    )

    assert inverse_frequencies(config, 32)[0] == pytest.approx([1.0, 0.05])
    assert inverse_frequencies(config, 33)[0] == pytest.approx([1.0, 0.02])
