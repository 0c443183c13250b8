"""The reference backend against transformers, on tiny random models of every architecture."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.golden.goldens import tiny_golden
from tools.make_tiny_models import write_tiny_model
from tools.tiny_configs import HF_ONLY, VARIANTS, Weights, random_weights, variant_config

from kokuban.core.model_config import ModelConfig, RopeConfig
from kokuban.models.registry import build_program
from kokuban.runner.reference import ReferenceModel, load_reference
from kokuban.weights.source import open_source

FLOAT32_NOISE = 1e-4
"""The golden side is float32 with sums of 256 to 512 terms and logits up to 9: 3e-5 was seen."""


def reference(config: ModelConfig, weights: Weights) -> ReferenceModel:
    return ReferenceModel(build_program(config), weights, max_positions=config.max_positions)


def largest_difference(model: ReferenceModel, variant: str) -> float:
    golden = tiny_golden(variant)
    logits = model.start().append(golden.token_ids, golden.positions)
    return float(np.abs(logits - golden.logits).max())


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_equal_those_of_transformers(variant: str) -> None:
    config = variant_config(variant)

    model = reference(config, random_weights(config))

    assert largest_difference(model, variant) < FLOAT32_NOISE


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_hugging_face_directory_gives_the_same_logits(variant: str, tmp_path: Path) -> None:
    model = load_reference(open_source(write_tiny_model(tmp_path, variant)))

    assert largest_difference(model, variant) < FLOAT32_NOISE


@pytest.mark.parametrize("variant", sorted(VARIANTS.keys() - HF_ONLY))
def test_a_gguf_file_gives_the_same_logits(variant: str, tmp_path: Path) -> None:
    """Rows of q and k are interleaved in llama's files only (bug bank B68)."""
    model = load_reference(open_source(write_tiny_model(tmp_path, variant, form="gguf")))

    assert largest_difference(model, variant) < FLOAT32_NOISE


def without_rope_scaling(config: ModelConfig) -> ModelConfig:
    return replace(config, rope=replace(config.rope, scaling="none"))


def with_window(config: ModelConfig, window: int) -> ModelConfig:
    return replace(config, sliding_window=window)


WRONG: Mapping[str, tuple[str, Callable[[ModelConfig], ModelConfig]]] = {
    "llama: eps": ("llama", lambda c: replace(c, rms_norm_eps=1e-2)),
    "llama: head scale": ("llama", lambda c: replace(c, attention_scale=0.2)),
    "llama: interleaved": (
        "llama",
        lambda c: replace(c, rope=replace(c.rope, interleaved=True)),
    ),
    "linear ignored": ("llama_linear", without_rope_scaling),
    "llama3 ignored": ("llama_llama3", without_rope_scaling),
    "yarn ignored": ("llama_yarn", without_rope_scaling),
    "yarn without its factor": (
        "llama_yarn",
        lambda c: replace(c, rope=replace(c.rope, attention_factor=1.0)),
    ),
    "longrope with short factors": (
        "phi3_longrope",
        lambda c: replace(c, rope=replace(c.rope, long_factors=c.rope.short_factors)),
    ),
    "rotary dimensions": (
        "phi3_longrope",
        lambda c: replace(c, rope=RopeConfig(rotary_dim=32)),
    ),
    "mistral: window one too long": ("mistral", lambda c: with_window(c, 25)),
    "gemma: window one too short": ("gemma3", lambda c: with_window(c, 23)),
    "gemma: one base for all": ("gemma3", lambda c: replace(c, rope_local=None)),
    "gemma: pattern off by one": (
        "gemma3",
        lambda c: replace(c, window_layers=(True, True, True, True, False, True)),
    ),
    "gemma: embedding not scaled": ("gemma3", lambda c: replace(c, embedding_scale=1.0)),
    "gemma: other activation": ("gemma3", lambda c: replace(c, activation="silu")),
    "gemma: no final soft cap": ("gemma3_scaled", lambda c: replace(c, final_softcap=None)),
}


@pytest.mark.parametrize("fault", WRONG)
def test_the_golden_values_notice_a_wrong_number(fault: str) -> None:
    """What the tests above are worth: each of these public faults is far outside their bound."""
    variant, change = WRONG[fault]
    config = variant_config(variant)

    model = reference(change(config), random_weights(config))

    assert largest_difference(model, variant) > 100 * FLOAT32_NOISE


@pytest.mark.parametrize("variant", ["llama", "gemma3"])
def test_chunks_of_any_size_give_the_logits_of_the_whole(variant: str) -> None:
    config = variant_config(variant)
    model = reference(config, random_weights(config))
    token_ids = tiny_golden(variant).token_ids[:60]

    sequence = model.start()
    chunks = [sequence.append(token_ids[a:b]) for a, b in ((0, 1), (1, 8), (8, 31), (31, 60))]

    whole = model.logits(token_ids)
    np.testing.assert_allclose(np.concatenate(chunks), whole, rtol=0, atol=1e-11)
