"""Gemma 3 (text): window and full layers, each kind with its rotation; norms around each half.

The norm weights of safetensors files stand for 1 + w. `weights` adds the one when it reads them
(`ModelConfig.norm_weight_offset`); GGUF files hold the sum already.
"""

from dataclasses import replace

from kokuban.core.model_config import ModelConfig
from kokuban.models.blocks import attention, mlp
from kokuban.program.builder import ProgramBuilder
from kokuban.program.program import Program


def build(config: ModelConfig) -> Program:
    """Scaled embedding; each half is normed before and after; q and k are normed by head."""
    config = replace(config, qk_norm=True)
    b = ProgramBuilder(config)
    h = b.embed()
    normed = b.value("normed", config.hidden_size)
    for layer in range(config.num_layers):
        blk = f"blk.{layer}"
        x = b.norm(h, f"{blk}.attn_norm.weight", normed)
        out = attention(b, config, layer, x)
        b.add(h, b.norm(out, f"{blk}.post_attention_norm.weight", out), h)
        x = b.norm(h, f"{blk}.ffn_norm.weight", normed)
        out = mlp(b, config, layer, x)
        b.add(h, b.norm(out, f"{blk}.post_ffw_norm.weight", out), h)
    return b.finish(h)
