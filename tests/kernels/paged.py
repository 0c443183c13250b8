"""Requests in a paged cache, for the tests of kv_write and attention."""

from dataclasses import dataclass, field

import numpy as np

from kokuban.kernels.attention import AttentionBatch, attention
from kokuban.kernels.kv_write import kv_write
from kokuban.kvcache.layout import KvLayout
from kokuban.kvcache.storage import KvStorage

LAYER = 1


@dataclass
class Sequence:
    """One request: what it asks at each position, and what it leaves in the cache."""

    q: np.ndarray
    """[context, Hq, D]."""

    k: np.ndarray
    v: np.ndarray
    """[context, Hkv, D]."""

    blocks: list[int] = field(default_factory=list)


def make_sequence(
    context: int, *, num_query_heads: int, num_kv_heads: int, head_dim: int, seed: int = 0
) -> Sequence:
    rng = np.random.default_rng([seed, context])
    q = 2 * rng.standard_normal((context, num_query_heads, head_dim), np.float32)
    k, v = rng.standard_normal((2, context, num_kv_heads, head_dim), np.float32)
    return Sequence(q, k, v)


class Cache:
    """A pool in which nothing is zero by luck: what nobody wrote is NaN."""

    def __init__(self, layout: KvLayout, num_blocks: int, seed: int = 3) -> None:
        self.layout = layout
        self.storage = KvStorage(layout, num_blocks)
        self.storage.blocks[:] = 0xFF
        self.free = list(np.random.default_rng(seed).permutation(num_blocks))

    def store(self, sequence: Sequence, *, isa_cap: int = -1) -> None:
        """Give the sequence blocks and write all its K and V."""
        context, size = len(sequence.k), self.layout.block_size
        sequence.blocks = [int(self.free.pop()) for _ in range(-(-context // size))]
        at = np.arange(context)
        slots = np.array(sequence.blocks, np.int64)[at // size] * size + at % size
        k, v = (x.reshape(context, -1) for x in (sequence.k, sequence.v))
        kv_write(k, v, slots, self.storage.blocks, LAYER, self.layout, isa_cap=isa_cap)

    def kept(self, sequence: Sequence) -> tuple[np.ndarray, np.ndarray]:
        """K and V as the cache holds them, [context, Hkv, D] float32, by the layout's inverse."""
        sides = zip(
            *(self.layout.unpack(self.storage.block(b)) for b in sequence.blocks), strict=True
        )
        k, v = (np.concatenate([x[LAYER].swapaxes(0, 1) for x in side]) for side in sides)
        return k[: len(sequence.k)], v[: len(sequence.k)]

    def attend(
        self,
        parts: list[tuple[Sequence, int, int]],
        *,
        hide: bool = True,
        window: int | None = None,
        softcap: float | None = None,
        plan_threads: int = 1,
        thread_pool: object = None,
        isa_cap: int = -1,
    ) -> list[np.ndarray]:
        """Rows [first, end) of each sequence in one call; one array [end - first, Hq, D] each.

        With `hide`, blocks that are not needed are NO_BLOCK.
        """
        size = self.layout.block_size
        width = max(len(sequence.blocks) for sequence, _, _ in parts)
        tables = np.full((len(parts), width), -1, np.int32)
        for request, (sequence, first, end) in enumerate(parts):
            behind = max(0, first + 1 - window) // size if window and hide else 0
            tables[request, behind : -(-end // size)] = sequence.blocks[behind : -(-end // size)]
        lens = [end - first for _, first, end in parts]
        batch = AttentionBatch(
            np.concatenate([[0], np.cumsum(lens)]).astype(np.int32),
            np.array([end for _, _, end in parts], np.int32),
            tables,
        )
        heads, head_dim = parts[0][0].q.shape[1:]
        wide = np.zeros((sum(lens), heads * head_dim + 5), np.float32)
        q = wide[:, 2 : 2 + heads * head_dim]
        q[:] = np.concatenate([s.q[first:end] for s, first, end in parts]).reshape(sum(lens), -1)
        out = np.full((sum(lens), heads * head_dim), 77, np.float32)
        attention(
            q,
            self.storage.blocks,
            LAYER,
            self.layout,
            batch,
            out,
            num_query_heads=heads,
            scale=head_dim**-0.5,
            window=window,
            softcap=softcap,
            plan_threads=plan_threads,
            thread_pool=thread_pool,
            isa_cap=isa_cap,
        )
        return np.split(out.reshape(-1, heads, head_dim), np.cumsum(lens)[:-1])
