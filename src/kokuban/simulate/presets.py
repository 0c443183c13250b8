"""Models and machines that a simulation can name without having them."""

from collections.abc import Mapping

from kokuban.core.model_config import ModelConfig, RopeConfig
from kokuban.plan.machine import MachineConstants

MODELS: Mapping[str, ModelConfig] = {
    "llama-8b": ModelConfig(
        architecture="llama",
        name="llama-8b",
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
    ),
    "smollm2-135m": ModelConfig(
        architecture="llama",
        name="smollm2-135m",
        num_layers=30,
        hidden_size=576,
        intermediate_size=1536,
        num_query_heads=9,
        num_kv_heads=3,
        head_dim=64,
        vocab_size=49152,
        max_positions=8192,
        rms_norm_eps=1e-5,
        rope=RopeConfig(rotary_dim=64, theta=100_000.0),
        tied_embeddings=True,
        attention_scale=0.125,
    ),
}
"""Shapes of published models. Weights count 16 bits for llama-8b, as it is published; the test
model smollm2-135m is a file of Q4_1, which is 5 bits."""

WEIGHT_BITS: Mapping[str, int] = {"llama-8b": 16, "smollm2-135m": 5}

MACHINES: Mapping[str, MachineConstants] = {
    "h100": MachineConstants(
        int8_flops_per_s=0.5 * 1979e12,
        float_flops_per_s=0.5 * 989e12,
        attention_flops_per_s=0.3 * 989e12,
        weight_bytes_per_s=0.8 * 3.35e12,
        kv_bytes_per_s=0.8 * 3.35e12,
        value_bytes_per_s=0.8 * 3.35e12,
        copy_bytes_per_s=64e9,
        disk_read_bytes_per_s=6e9,
        disk_write_bytes_per_s=4e9,
        disk_latency_s=1e-4,
        dram_read_bytes_per_s=3.35e12,
        cache_read_bytes_per_s=5.5e12,
        fp32_peak_flops_per_s=67e12,
        int8_peak_flops_per_s=1979e12,
        op_overhead_s=0.0,
        step_overhead_s=2e-3,
        row_overhead_s=1e-5,
        token_overhead_s=0.0,
        cpu="NVIDIA H100 (data sheet, with the usual shares of its peaks)",
    )
}
"""What no engine of ours runs on yet: for traces that were recorded on such machines."""
