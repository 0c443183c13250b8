"""Cases of attention: one new token of each request, and a chunk of a prompt, for each KV dtype."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kokuban.bench import judge
from kokuban.bench.kernel_case import ALL_KV_DTYPES, Bound, Case, Prepared, Setup, Verdict
from kokuban.core.config import KvDtype
from kokuban.kernels.attention import AttentionBatch, attention
from kokuban.kvcache.layout import KvLayout
from kokuban.kvcache.storage import KvStorage

BLOCK_SIZE = 16
DISTINCT_BLOCKS = 61
"""Blocks of random numbers, repeated through the pool: no multiple of what tables are cut by."""

_SEED = 11
_LIMIT, _INT8_LIMIT = 1e-5, 1e-3
"""Of values of about 1. int8 rounds weights and queries to 16 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """A model's attention."""

    model: str
    num_query_heads: int
    num_kv_heads: int
    head_dim: int
    window: int | None = None


SMOLLM2 = Heads(model="smollm2-135m", num_query_heads=9, num_kv_heads=3, head_dim=64)
QWEN = Heads(model="qwen2.5-0.5b", num_query_heads=14, num_kv_heads=2, head_dim=64)
GEMMA = Heads(model="gemma-3-270m", num_query_heads=4, num_kv_heads=1, head_dim=256, window=512)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Requests of one call, all alike."""

    heads: Heads
    num_requests: int
    new_tokens: int
    context: int
    """With the new ones."""

    @property
    def pairs(self) -> int:
        """Query rows by the keys that they see, of all requests."""
        window = self.heads.window or self.context
        first = self.context - self.new_tokens + 1
        return self.num_requests * sum(min(n, window) for n in range(first, self.context + 1))

    @property
    def keys(self) -> int:
        """Keys that any row sees, of all requests."""
        window = self.heads.window or self.context
        return self.num_requests * min(self.context, window + self.new_tokens - 1)


def attention_cases(setup: Setup) -> Iterator[Case]:
    """Decode and chunks for each KV dtype on one model, then the other models in bf16."""
    decode = [(1, 1, 4096), (32, 1, 512)]
    chunks = [(1, 512, 512), (1, 512, 2048)]
    if setup.quick:
        decode, chunks = [(4, 1, 300)], [(1, 48, 300)]
    for dtype, sizes in itertools.product(ALL_KV_DTYPES, decode + chunks):
        yield _case(setup, dtype, SMOLLM2, *sizes)
    for heads, sizes in itertools.product((QWEN, GEMMA), decode + chunks):
        if not setup.quick:
            yield _case(setup, "bf16", heads, *sizes)


def _case(
    setup: Setup, dtype: KvDtype, heads: Heads, num_requests: int, new_tokens: int, context: int
) -> Case:
    shape = Shape(heads=heads, num_requests=num_requests, new_tokens=new_tokens, context=context)
    kv_bytes = shape.keys * _layout(heads, dtype).bytes_per_token
    values = 2 * 4 * num_requests * new_tokens * heads.num_query_heads * heads.head_dim
    kind = "decode" if new_tokens == 1 else "chunk"
    return Case(
        kernel="attention",
        name=f"{kind} {dtype} {heads.model} {num_requests}x{new_tokens} context {context}",
        bound=Bound(
            moved_bytes=kv_bytes + values,
            working_set_bytes=max(setup.cold_bytes, kv_bytes) if new_tokens == 1 else kv_bytes,
            ops=4 * shape.pairs * heads.num_query_heads * heads.head_dim,
            arithmetic="int8" if dtype == "int8" else "fma",
            threads=setup.threads,
        ),
        prepare=partial(_prepare, setup, dtype, shape),
    )


def _layout(heads: Heads, dtype: KvDtype) -> KvLayout:
    return KvLayout(
        block_size=BLOCK_SIZE,
        num_kv_heads=heads.num_kv_heads,
        head_dim=heads.head_dim,
        layers_per_group=1,
        dtype=dtype,
    )


def _prepare(setup: Setup, dtype: KvDtype, shape: Shape) -> Prepared:
    heads, layout = shape.heads, _layout(shape.heads, dtype)
    tables = _tables(setup, shape, layout)
    storage = KvStorage(layout, int(tables.max()) + 1)
    fill(storage)
    rows = shape.num_requests * shape.new_tokens
    draw = np.random.default_rng(_SEED)
    q = draw.standard_normal((rows, heads.num_query_heads * heads.head_dim)).astype(np.float32)
    out = np.empty_like(q)
    starts = np.arange(shape.num_requests + 1, dtype=np.int32) * np.int32(shape.new_tokens)
    lens = np.full(shape.num_requests, shape.context, np.int32)
    batches = [AttentionBatch(starts, lens, np.ascontiguousarray(table)) for table in tables]
    nothing = AttentionBatch(np.zeros_like(starts), lens, batches[0].block_tables)
    turn = itertools.cycle(batches)

    def attend(batch: AttentionBatch, num_rows: int = rows) -> None:
        attention(
            q[:num_rows], storage.blocks, 0, layout, batch, out[:num_rows],
            num_query_heads=heads.num_query_heads, scale=heads.head_dim**-0.5,
            window=heads.window, plan_threads=setup.threads, thread_pool=setup.pool,
            isa_cap=setup.isa_cap,
        )  # fmt: skip

    def check() -> Verdict:
        out[:] = np.nan
        attend(batches[0])
        exact = _exact(shape, storage, q, tables[0])
        limit = _INT8_LIMIT if dtype == "int8" else _LIMIT
        return Verdict(judge.relative_error(out, exact, 1.0), limit, "of values of about 1")

    return Prepared(lambda: attend(next(turn)), check, lambda: attend(nothing, 0))


def _tables(setup: Setup, shape: Shape, layout: KvLayout) -> NDArray[np.int32]:
    """[calls, requests, blocks] block ids, none twice: decode takes turns in more than caches hold,
    since a step comes back to a layer's KV only after all the others'."""
    blocks = -(-shape.context // BLOCK_SIZE)
    call_bytes = shape.num_requests * blocks * layout.bytes_per_block
    calls = -(-setup.cold_bytes // call_bytes) if shape.new_tokens == 1 else 1
    ids = np.random.default_rng(_SEED).permutation(calls * shape.num_requests * blocks)
    return ids.astype(np.int32).reshape(calls, shape.num_requests, blocks)


def fill(storage: KvStorage) -> None:
    """Random K and V: `DISTINCT_BLOCKS` different blocks over and over."""
    layout = storage.layout
    shape = (2, 1, layout.num_kv_heads, BLOCK_SIZE, layout.head_dim)
    draw = np.random.default_rng(_SEED)
    packed = np.stack(
        [layout.pack(*draw.standard_normal(shape, np.float32)) for _ in range(DISTINCT_BLOCKS)]
    )
    storage.blocks[:] = packed[np.arange(storage.num_blocks) % DISTINCT_BLOCKS]


def _exact(
    shape: Shape, storage: KvStorage, q: NDArray[np.float32], table: NDArray[Any]
) -> NDArray[np.float64]:
    heads = shape.heads
    parts = []
    for request, blocks in enumerate(table):
        unpacked = [storage.layout.unpack(storage.block(int(block))) for block in blocks]
        k, v = (
            np.concatenate([each[side][0].swapaxes(0, 1) for each in unpacked])[: shape.context]
            for side in (0, 1)
        )
        rows = q[request * shape.new_tokens : (request + 1) * shape.new_tokens]
        split = rows.reshape(shape.new_tokens, heads.num_query_heads, heads.head_dim)
        parts.append(judge.attention(split, k, v, scale=heads.head_dim**-0.5, window=heads.window))
    return np.concatenate(parts).reshape(q.shape)
