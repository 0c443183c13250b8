"""add, gated activations, softcap, take_rows."""

from typing import Literal

import numpy as np
import pytest
from tests.kernels import reference

from kokuban.kernels.elementwise import add, gated_activation, softcap, take_rows

COLS = (1, 7, 15, 16, 17, 33, 1536)


def wide(rows: int, cols: int, seed: int = 0) -> np.ndarray:
    """A range of columns of a wider matrix, as the values of a joined projection are."""
    rng = np.random.default_rng(seed)
    return (4 * rng.standard_normal((rows, cols + 9), np.float32))[:, 3 : 3 + cols]


@pytest.mark.parametrize("cols", COLS)
@pytest.mark.parametrize("variant", reference.VARIANTS)
def test_add_is_the_float32_sum_and_may_write_its_input(variant: int, cols: int) -> None:
    a, b = wide(3, cols), wide(3, cols, 1)
    expected = a + b

    add(a, b, a, isa_cap=variant)

    assert np.array_equal(a, expected)


@pytest.mark.parametrize("cols", COLS)
@pytest.mark.parametrize("kind", ["silu", "gelu_tanh", "relu"])
def test_gated_activations_are_within_the_stated_error_and_alike_on_every_variant(
    kind: Literal["silu", "gelu_tanh", "relu"], cols: int
) -> None:
    gate, up = wide(3, cols), wide(3, cols, 1)
    gate[0, 0], gate[1, 0], gate[2, 0] = 0.0, -30.0, 80.0
    exact = getattr(reference, kind)(gate) * up
    outs = []
    for variant in reference.VARIANTS:
        out = np.zeros_like(gate)
        gated_activation(kind, gate, up, out, isa_cap=variant)
        outs.append(out)

    assert (np.abs(outs[0] - exact) <= 1e-6 * np.maximum(np.abs(exact), np.abs(up))).all()
    assert all(np.array_equal(outs[0], out) for out in outs)


@pytest.mark.parametrize("cols", COLS)
def test_softcap_bounds_and_is_alike_on_every_variant(cols: int) -> None:
    x = wide(3, cols) * 40
    outs = [x.copy() for _ in reference.VARIANTS]
    for out, variant in zip(outs, reference.VARIANTS, strict=True):
        softcap(out, 30.0, isa_cap=variant)

    # tanh is within 2e-7, so the result is within 30 times that and its rounding.
    np.testing.assert_allclose(outs[0], 30 * np.tanh(x.astype(np.float64) / 30), rtol=0, atol=1e-5)
    assert all(np.array_equal(outs[0], out) for out in outs)


@pytest.mark.parametrize("variant", reference.VARIANTS)
def test_take_rows_copies_the_named_rows_only(variant: int) -> None:
    x, out = wide(5, 17), np.full((3, 17), 9, np.float32)

    take_rows(x, np.array([4, 0, 4], np.int32), out, rows=(0, 2), isa_cap=variant)

    assert np.array_equal(out[:2], x[[4, 0]])
    assert (out[2] == 9).all()


@pytest.mark.parametrize("variant", reference.VARIANTS)
def test_a_row_range_leaves_the_other_rows_and_columns_alone(variant: int) -> None:
    buffer = np.full((4, 40), 9, np.float32)
    out = buffer[:, 5:22]

    add(wide(4, 17), wide(4, 17), out, rows=(1, 3), isa_cap=variant)

    untouched = buffer.copy()
    untouched[1:3, 5:22] = 9
    assert (untouched == 9).all()
    assert np.array_equal(out[1:3], 2 * wide(4, 17)[1:3])


def test_a_value_that_is_not_finite_stays_in_its_element() -> None:
    gate = np.ones((1, 40), np.float32)
    gate[0, [3, 20]] = np.nan, np.inf
    outs = []
    for variant in reference.VARIANTS:
        out = np.zeros_like(gate)
        gated_activation("silu", gate, np.ones_like(gate), out, isa_cap=variant)
        outs.append(out)

    assert np.flatnonzero(~np.isfinite(outs[0][0])).tolist() == [3, 20]
    assert all(np.array_equal(outs[0], out, equal_nan=True) for out in outs)


def test_what_native_code_could_not_survive_is_refused() -> None:
    x = np.zeros((4, 8), np.float32)
    with pytest.raises(ValueError, match="b has 3 rows, not 4"):
        add(x, x[:3], x)
    with pytest.raises(ValueError, match="a: a row of 4 columns is empty or not contiguous"):
        add(x[:, ::2], x[:, :4], x[:, :4].copy())
    with pytest.raises(ValueError, match=r"indices\[1\] = 4 is not from 0 to 3"):
        take_rows(x, np.array([0, 4], np.int32), np.zeros((2, 8), np.float32))
    with pytest.raises(ValueError, match="rows 2 to 5 are not within the 4 of the output"):
        softcap(x, 30.0, rows=(2, 5))
    with pytest.raises(ValueError, match="x is float64 with 2 dimensions"):
        softcap(x.astype(np.float64), 30.0)
