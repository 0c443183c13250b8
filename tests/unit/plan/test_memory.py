"""KV blocks from a budget: the planning vectors T3 and T8, windows, and refusals."""

import pytest
from tests.unit.plan.llama_8b import PROGRAM

from kokuban.core.config import KvDtype
from kokuban.core.errors import ConfigError
from kokuban.kvcache.layout import KvLayout
from kokuban.plan.memory import (
    blocks_needed,
    check_draft_fits,
    default_budget,
    plan_draft_kv,
    plan_kv,
    target_share,
)
from kokuban.program.program import KvGroup, KvSpec

SMOLLM2 = KvSpec((KvGroup(tuple(range(30))),), num_kv_heads=3, head_dim=64)
GEMMA_270M = KvSpec(
    (*(KvGroup((i, i + 1, i + 2), 512) for i in range(5)), KvGroup((5, 11, 17))),
    num_kv_heads=1,
    head_dim=256,
)


def full(num_layers: int, num_kv_heads: int) -> KvSpec:
    return KvSpec((KvGroup(tuple(range(num_layers))),), num_kv_heads, head_dim=128)


@pytest.mark.parametrize(
    ("kv", "gib_at_4096"),
    [(PROGRAM.kv, 0.5), (full(80, 8), 1.25), (full(64, 8), 1.0), (full(48, 4), 0.375)],
)
def test_bytes_a_token_are_those_of_known_models(kv: KvSpec, gib_at_4096: float) -> None:
    """T3: Llama 8B and 70B, Qwen3 32B and 30B-A3B."""
    assert kv.bytes_per_token("bf16") * 4096 == gib_at_4096 * 2**30


@pytest.mark.parametrize("dtype", ["int8", "fp8_e4m3"])
def test_a_scale_for_each_token_head_and_side_is_counted(dtype: KvDtype) -> None:
    """F5e: (D + 4) / D bytes for each 8-bit element, 51.6 % of bf16 at D = 128."""
    kv = PROGRAM.kv

    assert kv.bytes_per_token(dtype) == 32 * 2 * 8 * (128 + 4) == 67_584
    assert kv.bytes_per_token(dtype) / kv.bytes_per_token("bf16") == 0.515625
    pool = plan_kv(kv, budget_bytes=2**30, block_size=16, dtype=dtype, max_context_tokens=8192)
    layout = KvLayout(block_size=16, num_kv_heads=8, head_dim=128, layers_per_group=32, dtype=dtype)
    assert pool.block_bytes == layout.bytes_per_block == 16 * 67_584
    assert pool.bytes_per_token == layout.bytes_per_token
    assert pool.num_blocks == 2**30 // (16 * 67_584)


@pytest.mark.parametrize(("context", "requests"), [(4096, 96), (32768, 12), (131072, 3)])
def test_a_budget_holds_whole_blocks_and_whole_requests(context: int, requests: int) -> None:
    """T8: 80 GB less headroom, weights and activations."""
    pool = plan_kv(
        PROGRAM.kv,
        budget_bytes=52_000_000_000,
        block_size=16,
        dtype="bf16",
        max_context_tokens=context,
    )

    assert pool.block_bytes == 2_097_152
    assert pool.num_blocks == 24_795
    assert pool.requests_at_full_length == requests


def test_the_start_message_has_all_numbers() -> None:
    pool = plan_kv(
        SMOLLM2, budget_bytes=2**30, block_size=16, dtype="bf16", max_context_tokens=8192
    )

    assert str(pool) == (
        "KV cache: 23,040 bytes a token, 2,912 blocks of 16 (1,024 MiB), 46,592 tokens, "
        "5 requests at the full length of 8,192"
    )


def test_a_window_group_holds_its_window_and_one_chunk() -> None:
    """512 tokens touch at most 33 blocks; the full group holds all 256."""
    assert blocks_needed(GEMMA_270M, 4096, block_size=16) == 5 * 33 + 256
    assert blocks_needed(GEMMA_270M, 4096, block_size=16, max_chunk=2048) == 5 * 161 + 256
    assert blocks_needed(GEMMA_270M, 100, block_size=16) == 6 * 7


def test_a_window_of_one_token_more_than_a_block_touches_two_blocks() -> None:
    """17 tokens from the last slot of a block fill that slot and the next block, no third."""
    kv = KvSpec((KvGroup((0,), 17),), num_kv_heads=1, head_dim=8)

    assert blocks_needed(kv, 1000, block_size=16) == 2
    assert blocks_needed(kv, 1000, block_size=16, max_chunk=2) == 3


def test_groups_share_a_pool_of_equal_blocks() -> None:
    pool = plan_kv(
        GEMMA_270M, budget_bytes=2**26, block_size=16, dtype="bf16", max_context_tokens=32768
    )

    assert pool.block_bytes == 16 * 3 * 2 * 256 * 2
    assert pool.num_blocks == 1365
    assert pool.num_tokens == 1365 // 6 * 16


def test_the_context_is_cut_to_what_the_pool_holds() -> None:
    pool = plan_kv(
        SMOLLM2, budget_bytes=2**26, block_size=16, dtype="bf16", max_context_tokens=8192
    )

    assert (pool.num_blocks, pool.max_context_tokens) == (182, 182 * 16)
    assert pool.requests_at_full_length == 1


def test_windows_let_a_longer_context_fit_in_the_same_pool() -> None:
    pool = plan_kv(
        GEMMA_270M, budget_bytes=2**24, block_size=16, dtype="bf16", max_context_tokens=32768
    )

    assert pool.num_blocks == 341
    assert pool.max_context_tokens == (341 - 5 * 33) * 16


def test_a_context_that_was_asked_for_and_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"holds 182 blocks .*8192 tokens needs 512"):
        plan_kv(
            SMOLLM2,
            budget_bytes=2**26,
            block_size=16,
            dtype="bf16",
            max_context_tokens=8192,
            required_context_tokens=8192,
        )


def test_a_budget_below_one_block_is_refused_with_the_least_that_works() -> None:
    with pytest.raises(ConfigError, match="use --kv-memory 368640 or more"):
        plan_kv(SMOLLM2, budget_bytes=1000, block_size=16, dtype="bf16", max_context_tokens=64)


def test_the_default_budget_is_a_tenth_of_what_is_free() -> None:
    def budget(available_bytes: int, requests: int = 256) -> int:
        return default_budget(
            SMOLLM2,
            available_bytes=available_bytes,
            block_size=16,
            dtype="bf16",
            max_context_tokens=8192,
            max_running_requests=requests,
        )

    assert budget(10 * 2**30) == 2**30
    assert budget(2**50, requests=2) == 2 * 8192 * 23_040


def test_a_draft_models_pool_is_part_of_the_budget_and_holds_as_many_tokens() -> None:
    target, draft = PROGRAM.kv, SMOLLM2
    share = target_share(target, draft, "bf16")
    assert share == 131_072 / (131_072 + 23_040)

    pool = plan_kv(
        target,
        budget_bytes=2**30,
        block_size=16,
        dtype="bf16",
        max_context_tokens=8192,
        share=share,
    )
    own = plan_draft_kv(draft, pool, dtype="bf16", max_context_tokens=2048)

    assert own.num_tokens == pool.num_tokens == 6960
    assert 2**30 - pool.block_bytes - own.block_bytes < pool.pool_bytes + own.pool_bytes <= 2**30
    assert own.max_context_tokens == 2048


def test_a_draft_model_with_more_groups_has_whole_blocks_of_each() -> None:
    pool = plan_kv(SMOLLM2, budget_bytes=2**24, block_size=16, dtype="bf16", max_context_tokens=512)
    own = plan_draft_kv(GEMMA_270M, pool, dtype="bf16", max_context_tokens=10_000)

    assert own.num_blocks == pool.num_blocks * 6
    assert own.max_context_tokens == 512


def test_too_small_a_budget_for_two_names_the_budget_that_both_need() -> None:
    with pytest.raises(ConfigError, match=r"use --kv-memory 4194304 or more"):
        plan_kv(
            PROGRAM.kv,
            budget_bytes=2**20,
            block_size=16,
            dtype="bf16",
            max_context_tokens=512,
            share=0.5,
        )


def test_a_draft_model_that_does_not_fit_is_refused_with_numbers() -> None:
    check_draft_fits("m", weight_bytes=600, kv_bytes=400, available_bytes=1000)

    text = "--speculate m needs 600 bytes for its weights and 400 for its KV pool, and 999 are free"
    with pytest.raises(ConfigError, match=text):
        check_draft_fits("m", weight_bytes=600, kv_bytes=400, available_bytes=999)
