"""The facts that `kokuban inspect` prints."""

from pathlib import Path

import numpy as np
from tests.unit.weights.small_models import small_directory, small_gguf

from kokuban.weights.inspect import TypeUse, describe
from kokuban.weights.mapped import WeightTensor
from kokuban.weights.quant_types import TensorType
from kokuban.weights.quantize import quantize
from kokuban.weights.source import open_source


def test_a_gguf_file_is_described_by_its_numbers(tmp_path: Path) -> None:
    values = np.ones((300, 32), np.float32)
    packed = quantize(values, TensorType.Q8_0)
    tensor = WeightTensor("x", TensorType.Q8_0, values.shape, packed)
    changes = {"tokenizer.chat_template": "T"}

    description = describe(open_source(small_gguf(tmp_path, changes, tensor)))

    assert description.format == "gguf"
    assert description.num_parameters == 480 + 9600
    assert description.num_bytes == 1920 + 10_200
    assert list(description.types.items()) == [
        (TensorType.Q8_0, TypeUse(1, 9600, 10_200)),
        (TensorType.F32, TypeUse(1, 480, 1920)),
    ]
    assert description.bits_per_weight == 8 * 12_120 / 10_080
    assert (description.tokenizer, description.num_tokens) == ("gpt2 (smollm)", 4)
    assert description.chat_template
    assert description.end_token_ids == (2,)
    assert description.kv_bytes_per_token == 2 * 2 * 2 * 12 * 2
    assert description.config.name == "tiny"


def test_a_missing_tokenizer_is_a_fact(tmp_path: Path) -> None:
    (small_directory(tmp_path) / "tokenizer.json").unlink()

    description = describe(open_source(tmp_path))

    assert "holds no tokenizer.json" in description.tokenizer
    assert description.num_tokens is None
    assert not description.chat_template
