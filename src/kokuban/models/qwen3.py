"""Qwen3: a llama that norms each head of q and k before it rotates them."""

from dataclasses import replace

from kokuban.core.model_config import ModelConfig
from kokuban.models.blocks import pre_norm_decoder
from kokuban.program.builder import ProgramBuilder
from kokuban.program.program import Program


def build(config: ModelConfig) -> Program:
    """The head norms belong to the architecture, whatever the file's keys say."""
    config = replace(config, qk_norm=True)
    b = ProgramBuilder(config)
    return b.finish(pre_norm_decoder(b, config))
