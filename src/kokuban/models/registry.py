"""From a model's numbers to its Program: which function builds which architecture."""

from collections.abc import Callable, Iterator, Mapping

from kokuban.core.errors import ModelError
from kokuban.core.model_config import ModelConfig, RopeConfig
from kokuban.models import gemma3, llama, phi3, qwen2, qwen3
from kokuban.program.check import check_program
from kokuban.program.program import Program

MAX_THETA = 1e30
MAX_RATIO = 1e9

ARCHITECTURES: Mapping[str, Callable[[ModelConfig], Program]] = {
    "gemma3": gemma3.build,
    "llama": llama.build,
    "phi3": phi3.build,
    "qwen2": qwen2.build,
    "qwen3": qwen3.build,
}


def build_program(config: ModelConfig) -> Program:
    """Build and check the Program of a model.

    Raises:
        ModelError: the architecture is unknown, or numbers of the config contradict each other
            (all contradictions in one text).
    """
    build = ARCHITECTURES.get(config.architecture)
    if build is None:
        raise ModelError(
            f"{config.name}: the architecture {config.architecture!r} is none of "
            f"{', '.join(ARCHITECTURES)}"
        )
    if problems := list(_problems(config)):
        raise ModelError(f"{config.name}: {'; '.join(problems)}")
    program = build(config)
    check_program(program)
    return program


def _problems(cfg: ModelConfig) -> Iterator[str]:
    for field in (
        "num_layers",
        "hidden_size",
        "intermediate_size",
        "num_query_heads",
        "num_kv_heads",
        "head_dim",
        "vocab_size",
        "max_positions",
    ):
        if getattr(cfg, field) < 1:
            yield f"{field}={getattr(cfg, field)} is below 1"
    if cfg.num_kv_heads > 0 and cfg.num_query_heads % cfg.num_kv_heads != 0:
        yield (
            f"num_query_heads={cfg.num_query_heads} is no multiple of "
            f"num_kv_heads={cfg.num_kv_heads}"
        )
    if cfg.window_layers and len(cfg.window_layers) != cfg.num_layers:
        yield f"window_layers has {len(cfg.window_layers)} entries for {cfg.num_layers} layers"
    if any(cfg.window_layers) and (cfg.sliding_window is None or cfg.sliding_window < 1):
        yield f"window layers need a sliding_window of 1 or more, not {cfg.sliding_window}"
    for rope in (cfg.rope, cfg.rope_local):
        if rope is not None:
            yield from _rope_problems(rope, cfg.head_dim)


def _rope_problems(rope: RopeConfig, head_dim: int) -> Iterator[str]:
    if rope.rotary_dim % 2 or not 2 <= rope.rotary_dim <= head_dim:
        yield f"rotary_dim={rope.rotary_dim} is no even number from 2 to head_dim={head_dim}"
    for field in ("short_factors", "long_factors", "freq_factors"):
        count = len(getattr(rope, field))
        if count not in (0, rope.rotary_dim // 2):
            yield f"{field} has {count} entries for {rope.rotary_dim // 2} frequencies"
    if rope.scaling == "longrope" and not (rope.short_factors and rope.long_factors):
        yield "longrope needs short_factors and long_factors"
    if rope.scaling in ("llama3", "yarn", "longrope") and rope.original_max_positions < 2:
        yield (
            f"{rope.scaling} needs original_max_positions of 2 or more, "
            f"not {rope.original_max_positions}"
        )
    if rope.scaling == "llama3" and not rope.low_freq_factor < rope.high_freq_factor:
        yield (
            f"low_freq_factor={rope.low_freq_factor} is not below "
            f"high_freq_factor={rope.high_freq_factor}"
        )
    yield from _wild_numbers(rope)


def _wild_numbers(rope: RopeConfig) -> Iterator[str]:
    """Numbers with which the frequencies could not be computed; far from all that is in use."""
    if not 1 < rope.theta <= MAX_THETA:
        yield f"theta={rope.theta} is not above 1 and up to {MAX_THETA:g}"
    ratios = ("factor", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow")
    for field in (*ratios, "attention_factor"):
        value = getattr(rope, field)
        if value is not None and not 1 / MAX_RATIO <= value <= MAX_RATIO:
            yield f"{field}={value} is not from {1 / MAX_RATIO:g} to {MAX_RATIO:g}"
    for field in ("short_factors", "long_factors", "freq_factors"):
        least = min(getattr(rope, field), default=1.0)
        if not least >= 1 / MAX_RATIO:
            yield f"{field} has {least}, which is below {1 / MAX_RATIO:g}"
