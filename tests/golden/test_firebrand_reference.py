"""A checkpoint whose output is known by construction: it counts down from its prompt."""

import numpy as np
from tests.golden.firebrand import (
    OUTPUT_IDS,
    PROMPT_IDS,
    countdown_config,
    countdown_weights,
)

from kokuban.models.registry import build_program
from kokuban.runner.reference import ReferenceModel


def test_the_countdown_is_computed_to_its_end() -> None:
    model = ReferenceModel(build_program(countdown_config()), countdown_weights())
    sequence = model.start()

    logits, output = sequence.append(PROMPT_IDS)[-1], []
    for _ in OUTPUT_IDS:
        output.append(int(logits.argmax()))
        logits = sequence.append(output[-1:])[0]

    assert tuple(output) == OUTPUT_IDS


def test_the_weights_are_finite_float32() -> None:
    for array in countdown_weights().values():
        assert array.dtype == np.float32
        assert np.isfinite(array).all()
