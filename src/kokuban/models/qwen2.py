"""Qwen2 and Qwen2.5: a llama whose q, k and v projections have biases."""

from dataclasses import replace

from kokuban.core.model_config import ModelConfig
from kokuban.models.blocks import pre_norm_decoder
from kokuban.program.builder import ProgramBuilder
from kokuban.program.program import Program


def build(config: ModelConfig) -> Program:
    """The biases belong to the architecture, whatever the file's keys say."""
    config = replace(config, qkv_bias=True)
    b = ProgramBuilder(config)
    return b.finish(pre_norm_decoder(b, config))
