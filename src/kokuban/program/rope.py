"""The rotary frequencies of a RopeConfig, whatever its scaling: plain floats, computed at load.

All backends take their cos and sin from these numbers; a table is a model's constant, not a
kernel's choice.
"""

import math
from collections.abc import Sequence

from kokuban.core.model_config import RopeConfig


def inverse_frequencies(config: RopeConfig, max_positions: int) -> tuple[list[float], float]:
    """Angle of pair i at position p is p * frequency[i]; cos and sin are multiplied by the factor.

    Args:
        max_positions: the longest sequence that will be run. Only longrope looks at it: one set of
            factors holds for all sequences of an engine, so that cached K never changes.

    Returns:
        rotary_dim / 2 frequencies in radians a token, and the factor of cos and sin.
    """
    dim = config.rotary_dim
    plain = [config.theta ** (-i / dim) for i in range(0, dim, 2)]
    factor = 1.0
    match config.scaling:
        case "none":
            scaled = plain
        case "linear":
            scaled = [f / config.factor for f in plain]
        case "llama3":
            scaled = [_llama3(f, config) for f in plain]
        case "yarn":
            scaled, factor = _yarn(plain, config), _yarn_factor(config)
        case "longrope":
            long = max_positions > config.original_max_positions
            scaled = _divided(plain, config.long_factors if long else config.short_factors)
            factor = _longrope_factor(config, max_positions)
    return _divided(scaled, config.freq_factors), factor


def _divided(frequencies: Sequence[float], divisors: Sequence[float]) -> list[float]:
    """Each frequency over its divisor; without divisors, as they are."""
    if not divisors:
        return list(frequencies)
    return [f / d for f, d in zip(frequencies, divisors, strict=True)]


def _llama3(frequency: float, config: RopeConfig) -> float:
    """Keep short wavelengths, stretch long ones, blend between.

    Source: Llama 3.1 (the `apply_scaling` of its reference code).
    """
    turns = config.original_max_positions * frequency / (2 * math.pi)
    low, high = config.low_freq_factor, config.high_freq_factor
    if turns > high:
        return frequency
    if turns < low:
        return frequency / config.factor
    smooth = (turns - low) / (high - low)
    return (1 - smooth) * frequency / config.factor + smooth * frequency


def _yarn(plain: Sequence[float], config: RopeConfig) -> list[float]:
    """Dimensions that turn often keep their frequency, those that turn seldom are interpolated.

    Source: Peng et al. 2023, section 3.2.
    """

    def dimension(turns: float) -> float:
        wavelength = config.original_max_positions / (turns * 2 * math.pi)
        return config.rotary_dim * math.log(wavelength) / (2 * math.log(config.theta))

    low = max(math.floor(dimension(config.beta_fast)), 0)
    high = min(math.ceil(dimension(config.beta_slow)), config.rotary_dim - 1)
    width = high - low if high != low else 0.001  # a step, without dividing by zero
    scaled = []
    for i, frequency in enumerate(plain):
        interpolated = min(max((i - low) / width, 0.0), 1.0)
        scaled.append(frequency * (interpolated / config.factor + 1 - interpolated))
    return scaled


def _yarn_factor(config: RopeConfig) -> float:
    """Source: Peng et al. 2023, section 3.4: 0.1 ln(factor) + 1."""
    if config.attention_factor is not None:
        return config.attention_factor
    return 0.1 * math.log(config.factor) + 1 if config.factor > 1 else 1.0


def _longrope_factor(config: RopeConfig, max_positions: int) -> float:
    """`config.factor` is the model's longest context over the one it was first trained on.

    Source: Ding et al. 2024 as in Phi-3: sqrt(1 + ln(factor) / ln(original)).
    """
    if config.attention_factor is not None:
        return config.attention_factor
    factor = config.factor
    if factor == 1.0:  # not stated by the file
        factor = max_positions / config.original_max_positions
    if factor <= 1:
        return 1.0
    return math.sqrt(1 + math.log(factor) / math.log(config.original_max_positions))
