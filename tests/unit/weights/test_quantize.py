"""Quantisation: equal to the gguf package where it is defined, close to the numbers everywhere."""

from pathlib import Path

import numpy as np
import pytest

from kokuban.core.errors import ModelError
from kokuban.weights.dequant import dequantize, dequantize_tensor
from kokuban.weights.mapped import WeightTensor
from kokuban.weights.quant_types import TensorType
from kokuban.weights.quantize import quantize, quantize_tensor

GOLDEN = np.load(Path(__file__).parent / "fixtures" / "quant_blocks.npz")
REFERENCE_TYPES = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")

# Root mean square error over normal numbers of deviation 1. About step / sqrt(12), where a step is
# the range of a group (4 deviations of 16 or 32 numbers) over the levels; measured, plus a tenth.
LARGEST_ERROR = {
    "F32": 0.0,
    "F16": 0.00024,
    "BF16": 0.0019,
    "Q8_0": 0.0059,
    "Q6_K": 0.0207,
    "Q5_1": 0.042,
    "Q5_0": 0.047,
    "Q5_K": 0.042,
    "Q4_1": 0.086,
    "Q4_0": 0.095,
    "Q4_K": 0.086,
    "Q3_K": 0.171,
    "Q2_K": 0.358,
}


@pytest.mark.parametrize("name", REFERENCE_TYPES)
def test_blocks_of_32_are_encoded_as_the_gguf_package_does(name: str) -> None:
    encoded = quantize(GOLDEN["rows"], TensorType[name])

    np.testing.assert_array_equal(encoded, GOLDEN[f"{name}_encoded"])


@pytest.mark.parametrize("name", LARGEST_ERROR)
def test_the_error_is_what_the_number_of_levels_allows(name: str) -> None:
    values = np.random.default_rng(7).normal(0, 1, 256 * 64).astype(np.float32)

    back = dequantize(quantize(values, TensorType[name]), TensorType[name])

    assert np.sqrt(np.mean((back - values) ** 2)) <= LARGEST_ERROR[name]


@pytest.mark.parametrize("tensor_type", list(TensorType), ids=lambda t: t.name)
def test_zeros_stay_zeros(tensor_type: TensorType) -> None:
    values = np.zeros(512, np.float32)

    back = dequantize(quantize(values, tensor_type), tensor_type)

    np.testing.assert_array_equal(back, values)


@pytest.mark.parametrize("tensor_type", list(TensorType), ids=lambda t: t.name)
def test_encoding_what_was_decoded_changes_little(tensor_type: TensorType) -> None:
    """A shift of codes by one place, or scales in another order, would show here."""
    values = np.random.default_rng(3).normal(0, 1, 512).astype(np.float32)
    values[256:] *= np.repeat(np.linspace(0.1, 3, 16, dtype=np.float32), 16)
    once = dequantize(quantize(values, tensor_type), tensor_type)

    twice = dequantize(quantize(once, tensor_type), tensor_type)

    assert np.abs(twice - once).max() <= 0.5 * np.abs(once - values).max() + 1e-6


def test_bfloat16_rounds_to_nearest_even() -> None:
    halfway_up = np.array([0x3F808000, 0x3F818000, 0x3F808001], np.uint32).view(np.float32)

    words = quantize(halfway_up, TensorType.BF16).view("<u2")

    assert words.tolist() == [0x3F80, 0x3F82, 0x3F81]


def test_a_tensor_of_several_pieces_equals_one_encoded_whole() -> None:
    values = np.random.default_rng(1).normal(0, 1, (2200, 512)).astype(np.float32)
    tensor = WeightTensor("w", TensorType.F32, values.shape, values.view(np.uint8).reshape(-1))

    quantized = quantize_tensor(tensor, TensorType.Q8_0)

    np.testing.assert_array_equal(quantized.data, quantize(values, TensorType.Q8_0))
    assert quantized.shape == (2200, 512)
    assert dequantize_tensor(quantized).shape == (2200, 512)


def test_rows_that_are_no_whole_blocks_are_refused() -> None:
    tensor = WeightTensor("w", TensorType.F32, (2, 48), np.zeros(384, np.uint8))

    with pytest.raises(ModelError, match=r"'w' has rows of 48 elements, no multiple of the Q4_1"):
        quantize_tensor(tensor, TensorType.Q4_1)


@pytest.mark.parametrize(("number", "problem"), [(np.nan, "not finite"), (1e6, "above 65504")])
def test_numbers_that_a_block_cannot_hold_are_refused(number: float, problem: str) -> None:
    values = np.full((1, 32), number, np.float32)
    tensor = WeightTensor("w", TensorType.F32, (1, 32), values.view(np.uint8).reshape(-1))

    with pytest.raises(ModelError, match=f"'w'.*{problem}"):
        quantize_tensor(tensor, TensorType.Q8_0)
