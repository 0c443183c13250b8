"""Paged causal attention. The contract, with the order of every sum, stands in
csrc/kernels/attention/attention.h.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from kokuban import _native
from kokuban.kernels.arguments import Floats, Ints, check_matrix, check_vector
from kokuban.kernels.kv_write import KvNumbers, Pool, check_pool, layout_numbers


@dataclass(frozen=True, slots=True, eq=False)
class AttentionBatch:
    """The requests of a step, as one KV group sees them."""

    query_start: Ints
    """[R + 1] int32. Request r owns rows query_start[r] up to query_start[r + 1]."""

    context_lens: Ints
    """[R] int32. Tokens of each request, this step's included."""

    block_tables: Ints
    """[R, M] int32. Block ids in sequence order. NO_BLOCK (-1) where nobody looks: wholly behind
    the window, or past the context."""


class AttentionChunk(NamedTuple):
    """Some tokens of a request."""

    request: int
    token: int
    """The first one, counted from the request's first row."""

    num_tokens: int


class AttentionItem(NamedTuple):
    """A piece of work: the query heads of one KV head, some tokens, some splits of 256 keys."""

    kv_head: int
    chunks: list[AttentionChunk]
    """More than one where requests have the same blocks in these splits."""

    first_split: int
    end_split: int
    partial: bool
    """Its result is merged with that of other items, for one of the chunks at least."""


def _check_batch(batch: AttentionBatch, num_rows: int) -> None:
    num_requests = len(batch.context_lens)
    check_vector("context_lens", batch.context_lens, np.int32)
    check_vector("query_start", batch.query_start, np.int32, num_requests + 1)
    if batch.query_start[0] != 0 or batch.query_start[-1] != num_rows:
        raise ValueError(
            f"query_start goes from {batch.query_start[0]} to {batch.query_start[-1]}, "
            f"not 0 to {num_rows}"
        )
    lens = np.diff(batch.query_start)
    if (lens < 0).any() or (lens > batch.context_lens).any():
        raise ValueError("query_start goes down, or a request has more rows than its context")


def _check_tables(
    batch: AttentionBatch, layout: KvNumbers, num_blocks: int, window: int | None
) -> None:
    tables = batch.block_tables
    if tables.dtype != np.int32 or tables.ndim != 2 or not tables.flags.c_contiguous:
        raise ValueError(f"block_tables is {tables.dtype} {tables.shape}, not int32 [R, M]")
    if tables.shape[0] != len(batch.context_lens):
        raise ValueError(f"block_tables has {tables.shape[0]} rows, not {len(batch.context_lens)}")
    size, lens = layout.block_size, batch.context_lens
    too_long = lens > tables.shape[1] * size
    if too_long.any():
        request = int(too_long.argmax())
        raise ValueError(
            f"request {request} has {lens[request]} tokens, its table {tables.shape[1]} blocks"
        )
    rows = np.diff(batch.query_start)
    first = np.zeros_like(lens) if window is None else np.maximum(0, lens - rows + 1 - window)
    places = np.arange(tables.shape[1])
    seen = (places >= (first // size)[:, None]) & (places < -(-lens // size)[:, None])
    outside = (seen & (rows > 0)[:, None] & ((tables < 0) | (tables >= num_blocks))).any(axis=1)
    if outside.any():
        request = int(outside.argmax())
        raise ValueError(f"request {request} sees a block outside the pool of {num_blocks}")


def _query_group(num_query_heads: int, layout: KvNumbers) -> int:
    if num_query_heads < 1 or num_query_heads % layout.num_kv_heads:
        raise ValueError(
            f"{num_query_heads} query heads cannot share {layout.num_kv_heads} KV heads evenly"
        )
    return num_query_heads // layout.num_kv_heads


def _check_limits(window: int | None, softcap: float | None) -> None:
    if window is not None and window < 1:
        raise ValueError(f"window={window} is below 1; None means no window")
    if softcap is not None and not softcap > 0:
        raise ValueError(f"softcap={softcap} is not above 0; None means no soft-cap")


def attention(
    q: Floats,
    pool: Pool,
    layer: int,
    layout: KvNumbers,
    batch: AttentionBatch,
    out: Floats,
    *,
    num_query_heads: int,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    plan_threads: int = 1,
    thread_pool: Any = None,
    isa_cap: int = -1,
) -> None:
    """Attend each row to its request's cache: keys max(0, p + 1 - window) up to its position p.

    The last row of a request stands at position context_len - 1. Query head h reads KV head
    h // (Hq / Hkv). The bits of a row depend on its q and on what it sees in the pool alone.

    Args:
        q, out: [T, Hq * D] float32, rows may lie apart; the requests end to end. They must not
            overlap.
        pool: [N, bytes_per_block] uint8; this step's K and V are already written.
        layer: index of the layer in its group.
        scale: multiplies q·k; usually D ** -0.5.
        window: tokens that a row sees, its own included; None: all.
        softcap: cap * tanh(score / cap) on the scaled scores; None: none.
        plan_threads: threads that the work is cut for.
        thread_pool: a `_native.ThreadPool` that does it; None: the caller alone.
        isa_cap: index into `core.env.ISA_LEVELS`; -1: the best. The bits are the same.

    Source: Vaswani et al. 2017, eq. 1; grouped heads: Ainslie et al. 2023, section 2.2; splits and
        their merge: Dao et al. 2022, section 3.1.
    """
    _query_group(num_query_heads, layout)
    check_matrix("out", out, cols=num_query_heads * layout.head_dim, written=True)
    check_matrix("q", q, rows=out.shape[0], cols=out.shape[1])
    check_pool(pool, layer, layout)
    _check_limits(window, softcap)
    _check_batch(batch, q.shape[0])
    _check_tables(batch, layout, pool.shape[0], window)
    _native.attention(
        layout_numbers(layout),
        pool,
        layer,
        q,
        batch.query_start,
        batch.context_lens,
        batch.block_tables,
        out,
        num_query_heads,
        scale,
        softcap or 0.0,
        window or 0,
        plan_threads,
        thread_pool,
        isa_cap,
    )


def attention_items(
    batch: AttentionBatch,
    layout: KvNumbers,
    *,
    num_query_heads: int,
    window: int | None = None,
    threads: int = 1,
) -> list[AttentionItem]:
    """The work of a step as `attention` cuts it for so many threads, largest first."""
    _query_group(num_query_heads, layout)
    _check_batch(batch, int(batch.query_start[-1]))
    items = _native.attention_items(
        layout_numbers(layout),
        batch.query_start,
        batch.context_lens,
        batch.block_tables,
        num_query_heads,
        window or 0,
        threads,
    )
    return [
        AttentionItem(head, [AttentionChunk(*chunk) for chunk in chunks], *rest)
        for head, chunks, *rest in items
    ]
