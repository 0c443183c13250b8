"""A small model whose every step takes a second, and engines that run it."""

from dataclasses import replace

from kokuban.core.config import SchedulerConfig
from kokuban.core.model_config import ModelConfig, RopeConfig
from kokuban.models.registry import build_program
from kokuban.plan.cost import CostModel
from kokuban.plan.machine import MachineConstants, at_its_limits
from kokuban.program.cost import uniform_weight_bytes
from kokuban.simulate.replay import ReplaySetup

_PROGRAM = build_program(
    ModelConfig(
        architecture="llama",
        name="small",
        num_layers=2,
        hidden_size=8,
        intermediate_size=16,
        num_query_heads=2,
        num_kv_heads=1,
        head_dim=4,
        vocab_size=32,
        max_positions=4096,
        rms_norm_eps=1e-5,
        rope=RopeConfig(rotary_dim=4),
        attention_scale=0.5,
    )
)
SMALL_KV = _PROGRAM.kv

_NEVER = 1e30

INSTANT = replace(
    at_its_limits(
        bytes_per_s=_NEVER,
        float_flops_per_s=_NEVER,
        int8_flops_per_s=_NEVER,
        int8_attention=False,
    ),
    copy_bytes_per_s=_NEVER,
    step_overhead_s=1.0,
)


def small_model(constants: MachineConstants) -> CostModel:
    return CostModel(
        _PROGRAM,
        weight_bytes=uniform_weight_bytes(_PROGRAM, 16),
        kv_bytes_per_token=_PROGRAM.kv.bytes_per_token("bf16"),
        constants=constants,
    )


ONE_SECOND_STEPS = small_model(INSTANT)


def config(
    *,
    token_budget: int = 64,
    max_running_requests: int = 8,
    prefix_cache: bool = True,
) -> SchedulerConfig:
    return SchedulerConfig(
        token_budget=token_budget,
        max_running_requests=max_running_requests,
        prefix_cache=prefix_cache,
    )


def setup(
    *,
    num_blocks: int = 64,
    max_context_tokens: int = 4096,
    token_budget: int = 64,
    prefix_cache: bool = True,
    num_ram_blocks: int = 0,
    model: CostModel = ONE_SECOND_STEPS,
) -> ReplaySetup:
    return ReplaySetup(
        model=model,
        num_ram_blocks=num_ram_blocks,
        kv=SMALL_KV,
        num_blocks=num_blocks,
        max_context_tokens=max_context_tokens,
        scheduler=config(token_budget=token_budget, prefix_cache=prefix_cache),
    )
