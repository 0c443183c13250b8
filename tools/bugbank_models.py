"""Two tiny models whose behaviour tests can rely on: one follows a script, one only attends."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from tools.byte_tokenizer import END_ID, PLAIN_TOKENS, SPECIAL_TOKENS
from tools.tiny_configs import VOCAB_SIZE, Weights, uniform
from tools.tiny_formats import write_hf

from kokuban.core.model_config import ModelConfig, RopeConfig
from kokuban.models.registry import build_program

FIRST_PIECE_ID = 256 + len(SPECIAL_TOKENS) + len(PLAIN_TOKENS)
"""Id of the first text piece that a test adds to the byte tokenizer."""

Script = Mapping[int, int | Mapping[int, float]]
"""What follows a token: one id, or several with their weights (1 is a logit of about 22.6)."""

_CHAIN_SIZE = 512


def chain_config(*, tied: bool = False) -> ModelConfig:
    """One layer that adds nothing, between an identity embedding and the script."""
    return ModelConfig(
        architecture="llama",
        name="chain",
        num_layers=1,
        hidden_size=_CHAIN_SIZE,
        intermediate_size=64,
        num_query_heads=8,
        num_kv_heads=4,
        head_dim=64,
        vocab_size=_CHAIN_SIZE,
        max_positions=8192,
        rms_norm_eps=1e-6,
        rope=RopeConfig(rotary_dim=64),
        tied_embeddings=tied,
        attention_scale=0.125,
    )


def chain_weights(script: Script, *, tied: bool = False) -> Weights:
    """Row `next` of the head has a one in column `i`: after i comes next. The rest of it is 0.

    A tied model has no script: it repeats its last token.
    """
    weights: Weights = {}
    for name, spec in build_program(chain_config(tied=tied)).weights.items():
        fill = 1 if "norm" in name else 0
        weights[name] = np.full(spec.shape, fill, np.float32)
    weights["token_embd.weight"] = np.eye(_CHAIN_SIZE, dtype=np.float32)
    if tied:
        return weights
    for token, following in script.items():
        branches = {following: 1.0} if isinstance(following, int) else following
        for next_token, weight in branches.items():
            weights["output.weight"][next_token, token] = weight
    return weights


def write_chain(
    directory: Path, script: Script, *, pieces: Sequence[str] = (), tied: bool = False
) -> Path:
    """Write the scripted model as a Hugging Face directory.

    Args:
        script: what follows each token; after tokens that it leaves out all logits are 0.
        pieces: texts of the ids from FIRST_PIECE_ID up.
    """
    weights = chain_weights(script, tied=tied)
    return write_hf(directory, chain_config(tied=tied), weights, extra_pieces=tuple(pieces))


def script_of_pieces(num_pieces: int, *, after: int) -> dict[int, int]:
    """Say all pieces in turn after the token `after`, then `<|im_end|>`."""
    ids = [after, *range(FIRST_PIECE_ID, FIRST_PIECE_ID + num_pieces), END_ID]
    return dict(pairwise(ids))


def attn_config(**changes: object) -> ModelConfig:
    """A small random llama; `changes` replace fields of the ModelConfig."""
    config = ModelConfig(
        architecture="llama",
        name="attn",
        num_layers=4,
        hidden_size=64,
        intermediate_size=128,
        num_query_heads=4,
        num_kv_heads=2,
        head_dim=16,
        vocab_size=VOCAB_SIZE,
        max_positions=512,
        rms_norm_eps=1e-6,
        rope=RopeConfig(rotary_dim=16),
        attention_scale=0.25,
    )
    return replace(config, **changes)  # type: ignore[arg-type]


def attn_weights(config: ModelConfig, seed: int = 0) -> Weights:
    """Random matrices and biases of standard deviation 0.2; norms are 1."""
    spread = np.float32(0.2 * np.sqrt(3))
    return {
        name: np.ones(spec.shape, np.float32)
        if "norm" in name
        else uniform(f"attn {seed} {name}", spec.shape) * spread
        for name, spec in build_program(config).weights.items()
    }


def write_attn(directory: Path, *, seed: int = 0, **changes: object) -> Path:
    """Write the random model as a Hugging Face directory."""
    config = attn_config(**changes)
    return write_hf(directory, config, attn_weights(config, seed))
