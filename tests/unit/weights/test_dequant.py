"""Dequantisation against values that the gguf package computed (tools/make_quant_fixtures.py)."""

from pathlib import Path

import numpy as np
import pytest

from kokuban.weights.dequant import dequantize, dequantize_tensor
from kokuban.weights.mapped import WeightTensor
from kokuban.weights.quant_types import TensorType

GOLDEN = np.load(Path(__file__).parent / "fixtures" / "quant_blocks.npz")
STORED = [t for t in TensorType if t is not TensorType.F32]


@pytest.mark.parametrize("tensor_type", STORED, ids=lambda t: t.name)
def test_every_type_means_what_the_gguf_package_reads(tensor_type: TensorType) -> None:
    raw = GOLDEN[f"{tensor_type.name}_raw"]

    values = dequantize(raw, tensor_type)

    np.testing.assert_array_equal(values, GOLDEN[f"{tensor_type.name}_values"].reshape(-1))


def test_float32_is_read_as_it_stands_even_from_an_odd_address() -> None:
    numbers = np.array([1.5, -2.0, 3e30], "<f4")
    raw = np.frombuffer(b"x" + numbers.tobytes(), np.uint8)[1:]

    assert dequantize(raw, TensorType.F32).tolist() == numbers.tolist()


def test_a_tensor_keeps_its_shape() -> None:
    raw = np.arange(24, dtype="<f4").view(np.uint8)

    values = dequantize_tensor(WeightTensor("w", TensorType.F32, (4, 6), raw))

    assert values.shape == (4, 6)
    assert values[1, 0] == 6.0


def test_a_q4_1_block_by_hand() -> None:
    """Scale 2, min -3: the code 0xF in the low half of byte 0 is element 0, the high is 16."""
    raw = np.zeros(20, np.uint8)
    raw[0:4] = np.array([2.0, -3.0], "<f2").view(np.uint8)
    raw[4] = 0x1F

    values = dequantize(raw, TensorType.Q4_1)

    assert values[0] == 15 * 2 - 3
    assert values[16] == 1 * 2 - 3
    assert values[1] == -3
