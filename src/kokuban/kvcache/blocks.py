"""Block arithmetic: how tokens lie in blocks of a fixed number of slots.

S below is `block_size`, the token slots in a block.
"""

from collections.abc import Sequence
from typing import NamedTuple

from kokuban.core.request import BlockId


class Slot(NamedTuple):
    """Where one token's K and V lie."""

    block: BlockId
    offset: int
    """Index inside the block, from 0."""


def num_blocks_for(num_tokens: int, block_size: int) -> int:
    """Blocks that hold `num_tokens` tokens: ceil(num_tokens / S)."""
    return -(-num_tokens // block_size)


def num_empty_slots(num_tokens: int, block_size: int) -> int:
    """Slots of the last block that hold nothing: the whole waste of one request, S - 1 at most."""
    return -num_tokens % block_size


def max_blocks_touched(num_tokens: int, block_size: int) -> int:
    """Most blocks that a run of `num_tokens` tokens can touch, wherever in a block it begins."""
    return (num_tokens + block_size - 2) // block_size + 1 if num_tokens else 0


def locate(block_table: Sequence[BlockId], position: int, block_size: int) -> Slot:
    """The slot of the token at `position` of its sequence, found through its block table."""
    logical_block, offset = divmod(position, block_size)
    return Slot(block_table[logical_block], offset)


def first_needed(num_computed: int, window: int, block_size: int) -> int:
    """Logical block of the first token that token `num_computed` looks back to.

    Args:
        window: tokens that it sees, itself included.
    """
    return max(0, num_computed - window + 1) // block_size


def num_blocks_needed(
    num_tokens: int, windows: Sequence[int | None], block_size: int, *, max_chunk: int = 1
) -> int:
    """Most blocks that a request holds at once on its way to `num_tokens` tokens, in all groups.

    Args:
        windows: for each KV group the tokens it looks back; None: all of them.
        max_chunk: most tokens that one step computes of it. A window group holds the chunk and the
            window - 1 tokens before it.
    """
    whole = num_blocks_for(num_tokens, block_size)
    return sum(
        whole
        if window is None
        else min(whole, max_blocks_touched(window - 1 + max_chunk, block_size))
        for window in windows
    )


def max_tokens_in(num_blocks: int, windows: Sequence[int | None], block_size: int) -> int | None:
    """Most tokens, in whole blocks, of one request that has all the blocks; None: any number."""
    if num_blocks_needed(2**62, windows, block_size) <= num_blocks:
        return None
    low, high = 0, num_blocks
    while low < high:
        middle = (low + high + 1) // 2
        if num_blocks_needed(middle * block_size, windows, block_size) <= num_blocks:
            low = middle
        else:
            high = middle - 1
    return low * block_size
