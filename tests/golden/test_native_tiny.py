"""The native executor against transformers: tiny random models of every architecture, float32."""

from pathlib import Path

import numpy as np
import pytest
from tests.golden.goldens import tiny_golden
from tests.native_model import NativeModel
from tools.make_tiny_models import write_tiny_model
from tools.tiny_configs import VARIANTS

MAX_DIFFERENCE = 1e-3
"""Float32 sums in another order over 3 to 6 layers: measured 2e-5 at most."""


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_agree_with_transformers(variant: str, tmp_path: Path) -> None:
    golden = tiny_golden(variant)
    path = write_tiny_model(tmp_path, variant)

    logits = NativeModel(path, kv_dtype="fp32", threads=2).logits(golden.token_ids)

    difference = np.abs(logits[list(golden.positions)] - golden.logits).max()
    assert difference < MAX_DIFFERENCE, f"{variant}: {difference:.2g}"
