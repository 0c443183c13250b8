"""How many KV blocks fit: from a budget in bytes, or from a modest share of the free memory."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from kokuban.core.config import KvDtype
from kokuban.core.errors import ConfigError
from kokuban.kvcache.blocks import num_blocks_needed
from kokuban.program.program import KvSpec

DEFAULT_SHARE = 0.1
"""Of the memory that is free once the weights are loaded. The rest stays for others: this engine
mostly runs on machines that do other things too, and `--kv-memory` is one option away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvBudget:
    """The KV pool of one engine, in numbers."""

    block_size: int
    """Tokens in a block."""

    block_bytes: int
    """K and V of one block in the layers of one group."""

    num_blocks: int
    num_groups: int
    bytes_per_token: int
    """K and V of one token in all layers."""

    max_context_tokens: int
    """Tokens of one request, prompt and output: no more than the pool can hold."""

    blocks_at_full_length: int
    """Most blocks that one request of that many tokens holds at once."""

    @property
    def pool_bytes(self) -> int:
        """Bytes of the whole pool."""
        return self.num_blocks * self.block_bytes

    @property
    def num_tokens(self) -> int:
        """Tokens that the pool holds when no window gives any back."""
        return self.num_blocks // self.num_groups * self.block_size

    @property
    def requests_at_full_length(self) -> int:
        """Requests of `max_context_tokens` that fit at once."""
        return self.num_blocks // self.blocks_at_full_length

    def __str__(self) -> str:
        return (
            f"KV cache: {self.bytes_per_token:,} bytes a token, {self.num_blocks:,} blocks of "
            f"{self.block_size} ({self.pool_bytes / 2**20:,.0f} MiB), {self.num_tokens:,} tokens, "
            f"{self.requests_at_full_length:,} requests at the full length of "
            f"{self.max_context_tokens:,}"
        )


def block_bytes(kv: KvSpec, *, block_size: int, dtype: KvDtype) -> int:
    """Bytes of one block: the tokens of a block in the layers of one group."""
    return block_size * kv.bytes_per_token(dtype) // len(kv.groups)


def blocks_needed(kv: KvSpec, num_tokens: int, *, block_size: int, max_chunk: int = 1) -> int:
    """Most blocks that a request holds at once on its way to `num_tokens` tokens, in all groups.

    Args:
        max_chunk: most tokens that one step computes of it; a window group holds the chunk and the
            window - 1 tokens before it.
    """
    windows = [group.window for group in kv.groups]
    return num_blocks_needed(num_tokens, windows, block_size, max_chunk=max_chunk)


def plan_kv(
    kv: KvSpec,
    *,
    budget_bytes: int,
    block_size: int,
    dtype: KvDtype,
    max_context_tokens: int,
    required_context_tokens: int = 0,
    max_chunk: int = 1,
    share: float = 1.0,
) -> KvBudget:
    """Fill a budget with blocks.

    Args:
        max_context_tokens: what the model allows; cut down to what the pool holds.
        required_context_tokens: what the operator asked for; 0: nothing in particular.
        share: of the budget that is for this pool; a draft model's pool has the rest.

    Raises:
        ConfigError: the budget holds not even one block of each group, or not one request of
            `required_context_tokens`.
    """
    bytes_a_block = block_bytes(kv, block_size=block_size, dtype=dtype)
    num_blocks = int(budget_bytes * share) // bytes_a_block
    context = required_context_tokens or max_context_tokens

    def needed(num_tokens: int) -> int:
        return blocks_needed(kv, num_tokens, block_size=block_size, max_chunk=max_chunk)

    least = needed(required_context_tokens or 1)
    if num_blocks < least:
        raise ConfigError(
            f"the KV memory of {budget_bytes} bytes holds {num_blocks} blocks of {bytes_a_block} "
            f"bytes, but one request of {required_context_tokens or 1} tokens needs {least}; "
            f"use --kv-memory {math.ceil(least * bytes_a_block / share)} or more, or a smaller "
            f"--max-context-tokens"
        )
    if needed(context) > num_blocks:
        context = _longest(needed, num_blocks, block_size)
    return KvBudget(
        block_size=block_size,
        block_bytes=bytes_a_block,
        num_blocks=num_blocks,
        num_groups=len(kv.groups),
        bytes_per_token=kv.bytes_per_token(dtype),
        max_context_tokens=context,
        blocks_at_full_length=needed(context),
    )


def default_budget(
    kv: KvSpec,
    *,
    available_bytes: int,
    block_size: int,
    dtype: KvDtype,
    max_context_tokens: int,
    max_running_requests: int,
    share: float = 1.0,
) -> int:
    """A modest share of what is free, and no more than the running requests could ever fill.

    Args:
        share: of the budget that is for this pool.
    """
    most_blocks = max_running_requests * blocks_needed(
        kv, max_context_tokens, block_size=block_size, max_chunk=max_context_tokens
    )
    most_bytes = most_blocks * block_bytes(kv, block_size=block_size, dtype=dtype)
    return min(int(DEFAULT_SHARE * available_bytes), math.ceil(most_bytes / share))


def target_share(target: KvSpec, draft: KvSpec, dtype: KvDtype) -> float:
    """Of a budget for two pools, so that target and draft model hold equally many tokens."""
    target_bytes, draft_bytes = target.bytes_per_token(dtype), draft.bytes_per_token(dtype)
    return target_bytes / (target_bytes + draft_bytes)


def plan_draft_kv(
    kv: KvSpec, target: KvBudget, *, dtype: KvDtype, max_context_tokens: int
) -> KvBudget:
    """The pool of a draft model: for as many tokens as the target's holds.

    Args:
        max_context_tokens: what the draft model allows.
    """
    blocks_a_group = max(1, target.num_blocks // target.num_groups)
    bytes_a_block = block_bytes(kv, block_size=target.block_size, dtype=dtype)
    return plan_kv(
        kv,
        budget_bytes=blocks_a_group * len(kv.groups) * bytes_a_block,
        block_size=target.block_size,
        dtype=dtype,
        max_context_tokens=min(max_context_tokens, target.max_context_tokens),
    )


def check_draft_fits(name: str, *, weight_bytes: int, kv_bytes: int, available_bytes: int) -> None:
    """Refuse a draft model for which there is no memory.

    Args:
        available_bytes: what is free with the target's weights loaded.

    Raises:
        ConfigError: its weights and its KV pool need more.
    """
    if weight_bytes + kv_bytes > available_bytes:
        raise ConfigError(
            f"--speculate {name} needs {weight_bytes:,} bytes for its weights and {kv_bytes:,} for "
            f"its KV pool, and {available_bytes:,} are free; use a smaller draft model, a smaller "
            f"--kv-memory, or --speculate ngram, which needs no model"
        )


def _longest(needed: Callable[[int], int], num_blocks: int, block_size: int) -> int:
    """Most tokens, a multiple of the block size, whose blocks fit."""
    low, high = 0, num_blocks
    while low < high:
        middle = (low + high + 1) // 2
        if needed(middle * block_size) <= num_blocks:
            low = middle
        else:
            high = middle - 1
    return low * block_size
