"""The countdown model of tests/golden/fixtures; `tools/make_firebrand.py` says how it is made."""

import json
from pathlib import Path

import numpy as np
from tests.golden.goldens import FIXTURES
from tools.tiny_configs import Weights
from tools.tiny_formats import hf_name, write_hf

from kokuban.core.model_config import ModelConfig, RopeConfig
from kokuban.models.registry import build_program

_FIXTURE = FIXTURES / "firebrand_countdown.npz"

BOS_ID = 0
PROMPT_IDS = (BOS_ID, 32)
"""<bos> and "31"; the id of a number is the number and one."""

OUTPUT_IDS = tuple(range(31, 0, -1))
"""30 down to 0, which is the end token."""


def countdown_config() -> ModelConfig:
    """The numbers of the checkpoint, checked against what its exporter stated."""
    with np.load(_FIXTURE) as saved:
        stated = json.loads(str(saved["config_json"]))
    rope = stated["rope_parameters"]
    head_dim = stated["hidden_size"] // stated["num_attention_heads"]
    return ModelConfig(
        architecture="phi3",
        name="firebrand-countdown",
        num_layers=stated["num_hidden_layers"],
        hidden_size=stated["hidden_size"],
        intermediate_size=stated["intermediate_size"],
        num_query_heads=stated["num_attention_heads"],
        num_kv_heads=stated["num_key_value_heads"],
        head_dim=head_dim,
        vocab_size=stated["vocab_size"],
        max_positions=stated["max_position_embeddings"],
        rms_norm_eps=stated["rms_norm_eps"],
        rope=RopeConfig(
            theta=rope["rope_theta"], rotary_dim=int(head_dim * rope["partial_rotary_factor"])
        ),
        attention_scale=head_dim**-0.5,
        activation=stated["hidden_act"],
    )


def countdown_weights() -> Weights:
    """float32, by the Program's names."""
    with np.load(_FIXTURE) as saved:
        return {
            name: saved[hf_name(name, "phi3")] for name in build_program(countdown_config()).weights
        }


def write_countdown(directory: Path) -> Path:
    """Write the model as a Hugging Face directory in float32, with its own tokenizer."""
    write_hf(directory, countdown_config(), countdown_weights())
    with np.load(_FIXTURE) as saved:
        (directory / "tokenizer.json").write_text(str(saved["tokenizer_json"]))
    special = {"bos_token": "<bos>", "eos_token": "0", "add_bos_token": True}
    (directory / "tokenizer_config.json").write_text(json.dumps(special))
    (directory / "generation_config.json").write_text(
        json.dumps({"bos_token_id": BOS_ID, "eos_token_id": OUTPUT_IDS[-1]})
    )
    return directory
