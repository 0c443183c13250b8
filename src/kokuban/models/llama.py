"""Llama, and what is built alike: Mistral (with its sliding window), SmolLM2, stories260K."""

from kokuban.core.model_config import ModelConfig
from kokuban.models.blocks import pre_norm_decoder
from kokuban.program.builder import ProgramBuilder
from kokuban.program.program import Program


def build(config: ModelConfig) -> Program:
    """Pre-norm decoder, rotary positions, grouped heads, gated SiLU."""
    b = ProgramBuilder(config)
    return b.finish(pre_norm_decoder(b, config))
