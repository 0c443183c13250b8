"""Phi-3: a llama whose files hold q|k|v and gate|up as one matrix each."""

from kokuban.core.model_config import ModelConfig
from kokuban.models.blocks import pre_norm_decoder
from kokuban.program.builder import ProgramBuilder
from kokuban.program.program import Program


def build(config: ModelConfig) -> Program:
    """Joined projections; the rest is as in llama."""
    b = ProgramBuilder(config)
    return b.finish(pre_norm_decoder(b, config, joined=True))
