"""RMS norm of rows and of heads."""

import numpy as np
import pytest
from tests.kernels import reference

from kokuban.kernels.rms_norm import rms_norm


def normed(
    variant: int, x: np.ndarray, weight: np.ndarray, rows: tuple[int, int] | None = None
) -> np.ndarray:
    out = np.zeros(x.shape, np.float32)
    rms_norm(x, weight, out, eps=1e-5, rows=rows, isa_cap=variant)
    return out


@pytest.mark.parametrize("dim", [1, 7, 15, 16, 17, 64, 80, 576, 5376, 16384])
@pytest.mark.parametrize("runs", [1, 3])
def test_the_norm_is_within_1e_6_and_alike_on_every_variant(dim: int, runs: int) -> None:
    rng = np.random.default_rng(dim)
    x = (5 * rng.standard_normal((3, runs * dim + 5), np.float32))[:, 2 : 2 + runs * dim]
    weight = 1 + rng.standard_normal(dim, np.float32)
    outs = [normed(variant, x, weight) for variant in reference.VARIANTS]

    np.testing.assert_allclose(outs[0], reference.rms_norm(x, weight, 1e-5), rtol=1e-6)
    assert all(np.array_equal(outs[0], out) for out in outs)


@pytest.mark.parametrize("variant", reference.VARIANTS)
def test_a_row_does_not_depend_on_the_rows_beside_it(variant: int) -> None:
    rng = np.random.default_rng(0)
    x, weight = rng.standard_normal((5, 51), np.float32), rng.standard_normal(17, np.float32)
    whole = normed(variant, x, weight)
    x_with_nan = x.copy()
    x_with_nan[3, 20] = np.nan

    beside_nan = normed(variant, x_with_nan, weight)

    assert np.array_equal(normed(variant, x[2:3].copy(), weight), whole[2:3])
    assert np.array_equal(normed(variant, x, weight, rows=(1, 4))[1:4], whole[1:4])
    assert np.isnan(beside_nan[3, 17:34]).all()
    beside_nan[3, 17:34] = whole[3, 17:34]
    assert np.array_equal(beside_nan, whole)


@pytest.mark.parametrize("variant", reference.VARIANTS)
def test_the_output_may_be_the_input_and_zeros_give_zeros(variant: int) -> None:
    x = np.random.default_rng(0).standard_normal((2, 40), np.float32)
    weight = np.full(40, 2, np.float32)
    expected = normed(variant, x, weight)

    rms_norm(x, weight, x, eps=1e-5, isa_cap=variant)

    assert np.array_equal(x, expected)
    assert (normed(variant, np.zeros((1, 40), np.float32), weight) == 0).all()


def test_columns_that_are_no_whole_runs_are_refused() -> None:
    x = np.zeros((1, 40), np.float32)
    with pytest.raises(ValueError, match="40 columns are no multiple of the weight's 16 elements"):
        rms_norm(x, np.ones(16, np.float32), x, eps=1e-5)
