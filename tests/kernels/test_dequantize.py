"""Embedding rows out of the stored bytes."""

import numpy as np
import pytest
from tests.kernels import reference_linear as reference

from kokuban.core.errors import ModelError
from kokuban.kernels.dequantize import dequantize_rows


@pytest.mark.parametrize("name", reference.ALL)
def test_each_format_gives_the_numbers_of_its_definition(name: str) -> None:
    n, k = 9, 512
    raw = reference.stored_matrix(name, n, k)
    ids = np.array([8, 0, 3, 3])

    out = dequantize_rows(raw, name, (n, k), ids)

    assert np.array_equal(reference.dequantize(name, raw, n, k)[ids], out)


@pytest.mark.parametrize("name", ["F32", "Q4_1", "Q6_K"])
def test_the_scale_multiplies_each_element_once_rounded(name: str) -> None:
    raw = reference.stored_matrix(name, 2, 256)
    scale = np.sqrt(np.float32(640))

    out = dequantize_rows(raw, name, (2, 256), np.array([1]), scale=float(scale))

    assert np.array_equal(reference.dequantize(name, raw, 2, 256)[1:] * scale, out)


@pytest.mark.parametrize("name", ["F32", "F16", "BF16"])
def test_plain_numbers_allow_any_number_of_columns(name: str) -> None:
    raw = reference.stored_matrix(name, 3, 1)

    out = dequantize_rows(raw, name, (3, 1), np.array([2]))

    assert reference.dequantize(name, raw, 3, 1)[2, 0] == out[0, 0]


def test_rows_are_written_into_columns_of_a_wider_matrix() -> None:
    raw = reference.stored_matrix("Q8_0", 4, 32)
    wide = np.full((2, 40), 7, np.float32)

    dequantize_rows(raw, "Q8_0", (4, 32), np.array([1, 2]), out=wide[:, 4:36])

    assert np.array_equal(reference.dequantize("Q8_0", raw, 4, 32)[1:3], wide[:, 4:36])
    assert np.all(wide[:, :4] == 7)
    assert np.all(wide[:, 36:] == 7)


@pytest.mark.parametrize("row", [-1, 4])
def test_a_row_outside_the_matrix_is_refused(row: int) -> None:
    raw = reference.stored_matrix("F32", 4, 8)

    with pytest.raises(ValueError, match=f"row ids from {row} to {row} in a matrix of 4 rows"):
        dequantize_rows(raw, "F32", (4, 8), np.array([row]))


def test_bytes_that_do_not_fill_the_shape_are_refused() -> None:
    raw = reference.stored_matrix("Q4_0", 4, 32)[:-1]

    with pytest.raises(ModelError, match=r"Q4_0 \[4, 32\] takes 72 bytes, but there are 71"):
        dequantize_rows(raw, "Q4_0", (4, 32), np.array([0]))
