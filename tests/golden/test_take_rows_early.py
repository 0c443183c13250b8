"""What is moved behind the choice of rows gives the same bits, in every architecture."""

from pathlib import Path

import numpy as np
import pytest
from tests.golden.goldens import tiny_golden
from tests.native_model import NativeModel
from tools.make_tiny_models import write_tiny_model
from tools.tiny_configs import VARIANTS


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_the_same_in_every_bit(variant: str, tmp_path: Path) -> None:
    token_ids = tiny_golden(variant).token_ids
    path = write_tiny_model(tmp_path, variant)

    early = NativeModel(path, threads=2).logits(token_ids)
    plain = NativeModel(path, threads=2, takes_rows_early=False).logits(token_ids)

    np.testing.assert_array_equal(early, plain)
