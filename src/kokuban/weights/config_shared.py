"""What configurations from GGUF and from Hugging Face files have in common.

Whether the numbers fit together is checked where a Program is built of them, by `models`.
"""

from typing import get_args

from kokuban.core.model_config import Architecture, RopeConfig

ARCHITECTURES: tuple[Architecture, ...] = get_args(Architecture)

GEMMA3_WINDOW_PERIOD = 6
"""Every sixth layer of gemma3 sees the whole context, the five before it only the window."""

MAX_LAYERS = 1024
MAX_POSITIONS = 1 << 24
"""Above any context in use; tables are as long as the context."""


def window_layers(num_layers: int, period: int) -> tuple[bool, ...]:
    """For each layer whether it has the window: all but the last of each `period`."""
    return tuple((layer + 1) % period != 0 for layer in range(num_layers))


def reachable_positions(stated: int, rope: RopeConfig) -> int:
    """The context that a model offers: yarn files state the length from before the scaling."""
    if rope.scaling == "yarn":
        scaled = min(rope.factor * rope.original_max_positions, MAX_POSITIONS)
        return max(stated, int(scaled))
    return stated
