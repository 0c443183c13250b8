"""What an eviction policy alone would hit: one pool block for each named block, and no time.

The rule: a request hits the leading run of its names that are in the pool when it arrives. Then all
of its names are touched in order: one that is there becomes the most recent, one that is not takes
a block, whose old content is forgotten. No request holds anything, none is cut at prompt - 1, and
answers leave nothing: so the rate is that of the policy, to be compared with published ones.

The cost-aware policy weighs the blocks of one request against each other, so they are given back
together, tail first, as the engine does.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kokuban.core.config import Eviction
from kokuban.core.request import NO_BLOCK, BlockId
from kokuban.kvcache.pool import BlockContent, BlockKey, BlockPool
from kokuban.simulate.trace import Trace, TraceRequest

Worth = Callable[[int], float]
"""Seconds to compute the block at this place of its prompt: read by the cost-aware policy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyResult:
    """Hits of one trace at one capacity."""

    capacity_blocks: int
    eviction: Eviction
    num_blocks: int
    hit_blocks: int
    num_tokens: int
    hit_tokens: int
    """A last block that is not full counts its tokens only."""

    num_full_blocks: int
    hit_full_blocks: int
    mean_request_rate: float
    """Mean over the requests of their own share of tokens hit."""

    hits_by_request: tuple[int, ...]
    """Tokens, in the order of the trace."""

    @property
    def hit_rate(self) -> float:
        """Of the blocks: what the published tables state."""
        return self.hit_blocks / max(1, self.num_blocks)

    @property
    def token_hit_rate(self) -> float:
        return self.hit_tokens / max(1, self.num_tokens)

    @property
    def full_block_hit_rate(self) -> float:
        return self.hit_full_blocks / max(1, self.num_full_blocks)


class PolicyReplay:
    """Feeds the names of one trace to pools of several sizes."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._keys = [_keys(request) for request in trace.requests]

    def run(
        self, capacity_blocks: int, worth: Worth | None = None, *, tail_first: bool = False
    ) -> PolicyResult:
        """Replay the whole trace.

        Args:
            capacity_blocks: blocks of the pool; 0: as many as the trace has names.
            worth: evict by cost, not by recency.
            tail_first: touch the blocks of a request in the order in which the engine frees them,
                so that its head is the most recent. By cost that is always so.
        """
        trace, size = self._trace, self._trace.block_tokens
        eviction: Eviction = "lru" if worth is None else "cost"
        pool = BlockPool(capacity_blocks or max(1, trace.num_unique_blocks), eviction=eviction)
        if worth is not None:
            hits = [_hold_all(pool, keys, worth) for keys in self._keys]
        elif tail_first:
            hits = [_touch_backwards(pool, keys) for keys in self._keys]
        else:
            hits = [_touch(pool, keys) for keys in self._keys]
        prompts = [request.prompt_tokens for request in trace.requests]
        full = [tokens // size for tokens in prompts]
        hit_tokens = [min(hit * size, all_) for hit, all_ in zip(hits, prompts, strict=True)]
        shares = [hit / all_ for hit, all_ in zip(hit_tokens, prompts, strict=True)]
        return PolicyResult(
            capacity_blocks=pool.num_blocks,
            eviction=eviction,
            num_blocks=trace.num_blocks,
            hit_blocks=sum(hits),
            num_tokens=sum(prompts),
            hit_tokens=sum(hit_tokens),
            num_full_blocks=sum(full),
            hit_full_blocks=sum(map(min, hits, full)),
            mean_request_rate=sum(shares) / len(shares),
            hits_by_request=tuple(hit_tokens),
        )


def _keys(request: TraceRequest) -> list[BlockKey]:
    scope = request.scope.encode()
    return [BlockKey(b"%d:%b" % (block, scope)) for block in request.block_ids]


def _touch(pool: BlockPool, keys: Sequence[BlockKey]) -> int:
    """Touch the blocks of one request in order; returns how many lead the prompt and are there."""
    found = pool.leading_hits(0, keys)
    for block in found:
        pool.retain(block)
    pool.release(found)
    rest = keys[len(found) :]
    if len(rest) <= pool.num_blocks and not any(block != NO_BLOCK for block in pool.hits(0, rest)):
        # One after the other they would take the same blocks, and be free in the same order.
        taken = pool.allocate(len(rest))
        for block, key in zip(taken, rest, strict=True):
            pool.publish(block, BlockContent(0, key))
        pool.release(taken)
    else:
        for key in rest:
            pool.release((_hold(pool, key),))
    return len(found)


def _touch_backwards(pool: BlockPool, keys: Sequence[BlockKey]) -> int:
    """Touch the blocks of one request, the last one first; returns as `_touch` does."""
    num_hits = len(pool.leading_hits(0, keys))
    for key in reversed(keys):
        pool.release((_hold(pool, key),))
    return num_hits


def _hold_all(pool: BlockPool, keys: Sequence[BlockKey], worth: Worth) -> int:
    """Hold the blocks of one request and give them back, tail first; returns as `_touch` does."""
    num_hits = len(pool.leading_hits(0, keys))
    held = [_hold(pool, key) for key in keys[: pool.num_blocks]]
    worths = [worth(index) for index in range(len(held))]
    pool.release(reversed(held), reversed(worths))
    return num_hits


def _hold(pool: BlockPool, key: BlockKey) -> BlockId:
    """The block with this content, or a new one that has it from now on."""
    content = BlockContent(0, key)
    block = pool.lookup(content)
    if block is not None:
        pool.retain(block)
        return block
    [block] = pool.allocate(1)
    pool.publish(block, content)
    return block
