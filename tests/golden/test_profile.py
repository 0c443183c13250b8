"""The profile times what runs: every operation of the Program once, in order."""

from pathlib import Path

import pytest
from tests.native_model import NativeModel
from tools.make_tiny_models import write_tiny_model

from kokuban.program.ops import TakeRows


@pytest.fixture
def model(tmp_path: Path) -> NativeModel:
    return NativeModel(write_tiny_model(tmp_path, "llama"))


def test_every_operation_is_in_one_stage(model: NativeModel) -> None:
    profile = model.executor.profile()

    timed = [op for stage in profile.times() for op in stage.ops]

    everything = (*model.program.body, *model.program.head)
    assert timed == [op for op in everything if not isinstance(op, TakeRows)]


def test_stages_of_a_float_model_are_named_by_their_operations(model: NativeModel) -> None:
    labels = [stage.label for stage in model.executor.profile().times()]

    assert labels[:5] == ["Embed + RmsNorm", "Linear", "Rope + KvWrite", "Attention", "Linear"]
    assert labels[-3:] == ["Linear", "Add + RmsNorm", "Linear"]


def test_time_is_summed_until_the_end(model: NativeModel) -> None:
    profile = model.executor.profile()
    before = [stage.seconds for stage in profile.times()]
    model.logits([1, 2, 3])
    after = [stage.seconds for stage in profile.times()]
    profile.end()
    model.logits([1, 2, 3])

    assert not any(before)
    assert all(after)
    assert not any(stage.seconds for stage in profile.times())
