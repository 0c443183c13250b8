"""What holds for every `ModelConfig`, whatever file it came from."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from kokuban.core.errors import ModelError
from kokuban.core.model_config import Architecture, ModelConfig, RopeConfig

ARCHITECTURES: tuple[Architecture, ...] = get_args(Architecture)
GEMMA3_WINDOW_PERIOD = 6
"""Every sixth layer of gemma3 sees the whole context, the first five only the window."""

MAX_LAYERS = 1024


def checked(config: ModelConfig, path: Path) -> ModelConfig:
    """The config itself.

    Raises:
        ModelError: naming every contradiction in it.
    """
    problems = list(itertools.chain(_problems(config), _rope_problems(config)))
    if problems:
        raise ModelError(f"{path}: " + "; ".join(problems))
    return config


def window_layers(num_layers: int, period: int) -> tuple[bool, ...]:
    """For each layer whether it has the window: all but the last of each `period`."""
    return tuple((layer + 1) % period != 0 for layer in range(num_layers))


def reachable_positions(stated: int, rope: RopeConfig) -> int:
    """The context that a model offers: yarn files state the length from before the scaling."""
    if rope.scaling == "yarn":
        return max(stated, int(rope.factor * rope.original_max_positions))
    return stated


def _problems(config: ModelConfig) -> Iterator[str]:
    if config.num_query_heads % config.num_kv_heads:
        yield (
            f"{config.num_query_heads} query heads cannot share {config.num_kv_heads} KV heads "
            f"evenly"
        )
    if config.num_layers > MAX_LAYERS:
        yield f"{config.num_layers} layers are more than {MAX_LAYERS}"
    if config.window_layers and len(config.window_layers) != config.num_layers:
        yield f"{len(config.window_layers)} layer types are given for {config.num_layers} layers"
    if any(config.window_layers) and config.sliding_window is None:
        yield "layers with a sliding window are given, but not its size"


def _rope_problems(config: ModelConfig) -> Iterator[str]:
    for rope in (config.rope, config.rope_local):
        if rope is not None:
            yield from _one_rope_problems(rope, config.head_dim)


def _one_rope_problems(rope: RopeConfig, head_dim: int) -> Iterator[str]:
    if rope.rotary_dim % 2 or not 2 <= rope.rotary_dim <= head_dim:
        yield f"{rope.rotary_dim} rotary dimensions are not even, or above the head's {head_dim}"
    pairs = rope.rotary_dim // 2
    for what, factors in (
        ("rope_freqs", rope.freq_factors),
        ("short rope factors", rope.short_factors),
        ("long rope factors", rope.long_factors),
    ):
        if factors and len(factors) != pairs:
            yield f"{len(factors)} {what} are given for {pairs} pairs of rotary dimensions"
    if rope.scaling == "longrope" and not (rope.short_factors and rope.long_factors):
        yield "longrope scaling without its short and long factors"
