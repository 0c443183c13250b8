"""Llama-3.1-8B, the model of the planning vectors, and the H100 that they run it on."""

from kokuban.core.model_config import ModelConfig, RopeConfig
from kokuban.models.registry import build_program
from kokuban.plan.roofline import Machine

PROGRAM = build_program(
    ModelConfig(
        architecture="llama",
        name="llama-3.1-8b",
        num_layers=32,
        hidden_size=4096,
        intermediate_size=14336,
        num_query_heads=32,
        num_kv_heads=8,
        head_dim=128,
        vocab_size=128256,
        max_positions=131072,
        rms_norm_eps=1e-5,
        rope=RopeConfig(rotary_dim=128, theta=500_000.0),
        attention_scale=128**-0.5,
    )
)

H100 = Machine(flops_per_s=989e12, bytes_per_s=3.35e12)
