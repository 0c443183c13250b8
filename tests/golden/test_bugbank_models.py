"""The scripted and the attending model do what tests will rely on."""

from pathlib import Path

import numpy as np
import pytest
from tools.bugbank_models import (
    FIRST_PIECE_ID,
    attn_config,
    attn_weights,
    chain_config,
    chain_weights,
    script_of_pieces,
    write_attn,
    write_chain,
)
from tools.byte_tokenizer import END_ID

from kokuban.models.registry import build_program
from kokuban.runner.reference import ReferenceModel, load_reference
from kokuban.weights.source import open_source


def test_the_chain_says_its_pieces_and_ends() -> None:
    weights = chain_weights(script_of_pieces(3, after=10))
    sequence = ReferenceModel(build_program(chain_config()), weights).start()

    said, token_id = [], 10
    for _ in range(4):
        token_id = int(sequence.append([token_id])[0].argmax())
        said.append(token_id)

    assert said == [FIRST_PIECE_ID, FIRST_PIECE_ID + 1, FIRST_PIECE_ID + 2, END_ID]


def test_branches_have_the_logits_of_their_weights_and_all_others_are_zero() -> None:
    weights = chain_weights({7: {8: 1.0, 9: 0.97}})
    logits = ReferenceModel(build_program(chain_config()), weights).logits([7])[0]

    assert logits[8] == pytest.approx(22.62, abs=0.01)
    assert logits[9] == pytest.approx(21.95, abs=0.01)
    assert np.count_nonzero(logits) == 2


def test_a_chain_written_to_disk_still_follows_its_script(tmp_path: Path) -> None:
    model = load_reference(open_source(write_chain(tmp_path, {5: 6}, pieces=["<think>"])))

    assert int(model.logits([5])[0].argmax()) == 6
    assert '"<think>"' in (tmp_path / "tokenizer.json").read_text()


def test_a_tied_chain_repeats_its_last_token(tmp_path: Path) -> None:
    """Bug bank B74: no head in the file, the embedding stands in."""
    model = load_reference(open_source(write_chain(tmp_path, {}, tied=True)))

    assert model.logits([17, 99, 300]).argmax(axis=1).tolist() == [17, 99, 300]


def test_the_attending_model_depends_on_the_whole_prompt(tmp_path: Path) -> None:
    model = load_reference(open_source(write_attn(tmp_path, seed=3)))

    one, other = model.logits([1, 2, 3, 4])[-1], model.logits([9, 2, 3, 4])[-1]

    assert np.abs(one - other).max() > 0.1


def test_a_head_dim_of_its_own_changes_the_projections() -> None:
    """Bug bank B73: hidden 48, 4 heads of 32."""
    config = attn_config(hidden_size=48, head_dim=32)

    weights = attn_weights(config)

    assert weights["blk.0.attn_q.weight"].shape == (128, 48)
    assert weights["blk.0.attn_q.weight"].std() == pytest.approx(0.2, rel=0.02)
