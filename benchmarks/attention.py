"""How near attention comes to what bounds it: bytes for decoding, arithmetic for a prompt.

Run:    python benchmarks/attention.py [--threads 2] [--kv-dtype bf16] [--json out.json]
Reads:  decode: GB/s of K and V, beside those of a plain sum over the same memory, which is a floor
        for what the machine can read. prefill: GFLOP/s, 4 D for each visible pair of row and key.
        shared: how many times faster decoding is when requests have a prefix in the same blocks
        than with copies of their own, in alternation.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kokuban import _native
from kokuban.core.config import KV_DTYPES, kv_head_bytes
from kokuban.kernels.attention import AttentionBatch, attention
from kokuban.kvcache.layout import KvLayout
from kokuban.kvcache.storage import KvStorage

ROUNDS = 9


@dataclass(frozen=True)
class Shape:
    """The heads of a model's layer."""

    name: str
    num_query_heads: int
    num_kv_heads: int
    head_dim: int


SHAPES = (
    Shape("smollm2-135m", 9, 3, 64),
    Shape("qwen2.5-0.5b", 14, 2, 64),
    Shape("gemma3-270m", 4, 1, 256),
    Shape("llama-8b", 32, 8, 128),
)


def median_s(call: Callable[[], object]) -> float:
    call()
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def scattered_tables(
    rng: np.random.Generator, blocks: list[int], num_shared: int
) -> NDArray[np.int32]:
    """Block tables of requests with so many blocks each, which lie anywhere in the pool; the first
    `num_shared` of all are those of the first request."""
    tables = np.full((len(blocks), max(blocks)), -1, np.int32)
    ids = iter(rng.permutation(sum(blocks)))
    for request, count in enumerate(blocks):
        tables[request, :count] = [next(ids) for _ in range(count)]
    tables[1:, :num_shared] = tables[0, :num_shared]
    return tables


def step(
    shape: Shape, args: argparse.Namespace, contexts: list[int], tokens: int, shared: int = 0
) -> Callable[[], None]:
    """A call of attention: each request has `tokens` new rows at the end of its context.

    The blocks of the first `shared` tokens are those of the first request.
    """
    layout = KvLayout(
        block_size=args.block_size,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        layers_per_group=1,
        dtype=args.kv_dtype,
    )
    rng = np.random.default_rng(7)
    blocks = [-(-context // args.block_size) for context in contexts]
    storage = KvStorage(layout, sum(blocks))
    sides = rng.standard_normal((2, 1, shape.num_kv_heads, args.block_size, shape.head_dim))
    storage.blocks[:] = layout.pack(*sides.astype(np.float32))
    tables = scattered_tables(rng, blocks, shared // args.block_size)
    batch = AttentionBatch(
        np.arange(len(contexts) + 1, dtype=np.int32) * tokens, np.array(contexts, np.int32), tables
    )
    q = rng.standard_normal((len(contexts) * tokens, shape.num_query_heads * shape.head_dim))
    queries, out = q.astype(np.float32), np.zeros(q.shape, np.float32)
    threads = _native.ThreadPool(args.threads)

    def run() -> None:
        attention(
            queries,
            storage.blocks,
            0,
            layout,
            batch,
            out,
            num_query_heads=shape.num_query_heads,
            scale=shape.head_dim**-0.5,
            plan_threads=args.threads,
            thread_pool=threads,
        )

    return run


def decode_gb_s(shape: Shape, args: argparse.Namespace, contexts: list[int]) -> float:
    bytes_read = 2 * sum(contexts) * shape.num_kv_heads
    bytes_read *= kv_head_bytes(args.kv_dtype, shape.head_dim)
    return bytes_read / median_s(step(shape, args, contexts, 1)) / 1e9


def prefill_gflop_s(shape: Shape, args: argparse.Namespace, context: int, tokens: int) -> float:
    pairs = sum(range(context - tokens + 1, context + 1))
    work = 4 * pairs * shape.num_query_heads * shape.head_dim
    return work / median_s(step(shape, args, [context], tokens)) / 1e9


def shared_speedup(shape: Shape, args: argparse.Namespace, requests: int, prefix: int) -> float:
    """Decoding with copies of a prefix against decoding with shared blocks, 64 own tokens each."""
    contexts = [prefix + 64] * requests
    private, shared = (step(shape, args, contexts, 1, tokens) for tokens in (0, prefix))
    ratios = []
    for call in (private, shared):
        call()
    for _ in range(ROUNDS):
        marks = [time.perf_counter()]
        for call in (private, shared):
            call()
            marks.append(time.perf_counter())
        ratios.append((marks[1] - marks[0]) / (marks[2] - marks[1]))
    return statistics.median(ratios)


def read_gb_s() -> float:
    """What one thread of NumPy reads from memory in a sum."""
    memory = np.ones(64 << 20, np.float32)
    return memory.nbytes / median_s(memory.sum) / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--kv-dtype", choices=KV_DTYPES, default="bf16")
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    args = parser.parse_args()

    figures: dict[str, float] = {"read_gb_s": read_gb_s()}
    print(f"sum over 256 MiB, one thread   {figures['read_gb_s']:6.1f} GB/s")
    for shape in SHAPES:
        long = 2 ** (24 - (shape.num_kv_heads * shape.head_dim).bit_length())
        rows = {
            f"decode 1 x {long}": decode_gb_s(shape, args, [long]),
            f"decode 32 x {long // 32}": decode_gb_s(shape, args, [long // 32] * 32),
            "prefill 512 at 512": prefill_gflop_s(shape, args, 512, 512),
            "prefill 512 at 4096": prefill_gflop_s(shape, args, 4096, 512),
        }
        for name, value in rows.items():
            figures[f"{shape.name} {name}"] = value
            unit = "GB/s" if name.startswith("decode") else "GFLOP/s"
            print(f"{shape.name:14} {name:20} {value:8.1f} {unit}")
        for requests in (2, 8, 32):
            name = f"shared {requests} x 2048"
            figures[f"{shape.name} {name}"] = shared_speedup(shape, args, requests, 2048)
            print(f"{shape.name:14} {name:20} {figures[f'{shape.name} {name}']:8.2f} times")
    if args.json:
        args.json.write_text(json.dumps(figures))


if __name__ == "__main__":
    main()
