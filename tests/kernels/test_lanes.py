"""The sixteen-lane operations of csrc/simd that no kernel shows by itself."""

import numpy as np
import pytest
from tests.kernels import reference

from kokuban import _native

NAMES = [
    "exp",
    "tanh",
    "sigmoid",
    "reduce_add",
    "reduce_max",
    "through_bf16",
    "through_f16",
    "through_i32",
    "first_five",
    "exchange_pairs",
    "exp2_below",
]

SPECIAL = np.array(
    [0.0, -0.0, 1.0, -1.0, np.nan, np.inf, -np.inf, 1e-45, -1e-45, 5.9e-8, 6.1e-5, 65504, 65519,
     65520, -65536, 3.4e38, 88.0, 88.3762626647949, 89.0, -87.3, -87.4, -1e30, 0.5, 1.5, 2.5,
     2147483520.0, 2147483648.0, -2147483648.0, 1.00390625, 1.01171875, 2.0**-24, 2.0**-25],
    np.float32,
)  # fmt: skip


def lanes(name: str, x: np.ndarray, variant: int) -> np.ndarray:
    count = x.shape[0] // 16 if name.startswith("reduce") else x.shape[0]
    out = np.full(count, 7, np.float32)
    _native.lanes(NAMES.index(name), x, out, variant)
    return out


def random_bits(count: int) -> np.ndarray:
    """Floats of every size, NaN and infinity among them."""
    bits = np.random.default_rng(0).integers(0, 2**32, count, np.uint32)
    return bits.view(np.float32)


@pytest.mark.parametrize("name", NAMES)
def test_every_variant_gives_the_same_bits(name: str) -> None:
    for x in (SPECIAL, random_bits(1 << 14), np.linspace(-100, 100, 1 << 14, dtype=np.float32)):
        with np.errstate(all="ignore"):
            first = lanes(name, x, 0)
            for variant in reference.VARIANTS:
                out = lanes(name, x, variant)
                assert np.array_equal(np.isnan(out), np.isnan(first))
                same = out.view(np.uint32) == first.view(np.uint32)
                assert (same | np.isnan(first)).all()


def test_exp_is_within_one_unit_in_the_last_place() -> None:
    x = np.linspace(-87.3, 88.3, 1 << 16, dtype=np.float32)
    exact = np.exp(x.astype(np.float64))

    units = np.abs(lanes("exp", x, 0) - exact) / np.spacing(exact.astype(np.float32))

    assert units.max() < 1
    assert lanes("exp", np.zeros(16, np.float32), 0)[0] == 1


def test_exp2_below_is_within_two_units_in_the_last_place() -> None:
    x = np.linspace(-126, 0, 1 << 18, dtype=np.float32)
    exact = np.exp2(x.astype(np.float64))

    units = np.abs(lanes("exp2_below", x, 0) - exact) / np.spacing(exact.astype(np.float32))

    assert 1 < units.max() < 2
    far, nothing, none = (lanes("exp2_below", np.full(16, v, np.float32), 0)[0]
                          for v in (-np.inf, 0, np.nan))  # fmt: skip
    assert (far, nothing) == (np.float32(2.0**-126), 1)
    assert np.isnan(none)


def test_tanh_and_sigmoid_are_within_2e_7() -> None:
    x = np.linspace(-30, 30, 1 << 16, dtype=np.float32)

    assert np.abs(lanes("tanh", x, 0) - np.tanh(x.astype(np.float64))).max() < 2e-7
    assert np.abs(lanes("sigmoid", x, 0) - 1 / (1 + np.exp(-x.astype(np.float64)))).max() < 2e-7


def test_16_bit_floats_round_to_nearest_even_and_keep_what_is_not_finite() -> None:
    x = np.concatenate([SPECIAL, random_bits(1 << 14)])
    with np.errstate(over="ignore"):
        expected = x.astype(np.float16).astype(np.float32)
    assert np.array_equal(lanes("through_f16", x, 0), expected, equal_nan=True)

    got = lanes("through_bf16", x, 0)
    finite = np.isfinite(x) & (np.abs(x) < 3.38e38) & (np.abs(x) > 1e-37)
    error = np.abs(got[finite].astype(np.float64) - x[finite].astype(np.float64))
    assert (error <= np.abs(x[finite]) * 2.0**-8).all()
    assert (got[finite].view(np.uint32) & 0xFFFF == 0).all()
    assert np.array_equal(np.isnan(got), np.isnan(x))
    assert np.array_equal(got[np.isinf(x)], x[np.isinf(x)])
    ties = lanes("through_bf16", np.full(16, 1.00390625, np.float32), 0)
    assert (ties == 1.0).all()
    assert lanes("through_bf16", np.full(16, 1.01171875, np.float32), 0)[0] == 1.015625


def test_sums_over_lanes_go_in_the_fixed_tree() -> None:
    x = np.random.default_rng(1).standard_normal((64, 16), np.float32)
    tree = x.copy()
    for width in (8, 4, 2, 1):
        tree = tree[:, :width] + tree[:, width : 2 * width]

    assert np.array_equal(lanes("reduce_add", x.reshape(-1), 0), tree[:, 0])
    assert np.array_equal(lanes("reduce_max", x.reshape(-1), 0), x.max(axis=1))


def test_lanes_are_chosen_and_pairs_exchanged() -> None:
    x = np.arange(64, dtype=np.float32)

    for variant in reference.VARIANTS:
        assert lanes("first_five", x + 1, variant).reshape(4, 16)[:, :6].tolist() == [
            [at + 1, at + 2, at + 3, at + 4, at + 5, 0] for at in (0, 16, 32, 48)
        ]
        exchanged = lanes("exchange_pairs", x, variant)
        assert np.array_equal(exchanged, x.reshape(-1, 2)[:, ::-1].reshape(-1))
