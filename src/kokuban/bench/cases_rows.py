"""Cases of what is done row by row: norm, rotation, activation, storing of K and V, sampling.

The Python faces of all but sampling compute on the calling thread; the step shares rows out.
"""

from collections.abc import Iterator
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kokuban.bench import judge
from kokuban.bench.cases_attention import BLOCK_SIZE, SMOLLM2
from kokuban.bench.kernel_case import ALL_KV_DTYPES, Bound, Case, Prepared, Setup, Verdict
from kokuban.core.config import KvDtype
from kokuban.core.sampling_params import SamplingParams
from kokuban.kernels.elementwise import gated_activation
from kokuban.kernels.kv_write import kv_write
from kokuban.kernels.rms_norm import rms_norm
from kokuban.kernels.rope import rope, rope_table
from kokuban.kernels.sampling import SamplingRow, sample_rows, uniform
from kokuban.kvcache.layout import KvLayout
from kokuban.kvcache.storage import KvStorage

EMBED, HIDDEN, VOCAB = 576, 1536, 49152
"""Of SmolLM2-135M."""

LARGE_VOCAB = 262_144
"""Of Gemma 3."""

ROWS, QUICK_ROWS = (1, 32, 512), (3,)

_SEED = 13


def row_cases(setup: Setup) -> Iterator[Case]:
    """Everything but sampling, then sampling."""
    for rows in QUICK_ROWS if setup.quick else ROWS:
        yield _case("rms_norm", f"{EMBED} rows {rows}", 2 * rows * EMBED,
                    partial(_rms_norm, setup, rows))  # fmt: skip
        yield _case("rope", f"9x64 rows {rows}", 3 * rows * EMBED, partial(_rope, setup, rows))
        for kind in ("silu", "gelu_tanh"):
            yield _case("gated", f"{kind} {HIDDEN} rows {rows}", 3 * rows * HIDDEN,
                        partial(_gated, setup, kind, rows))  # fmt: skip
        for dtype in ALL_KV_DTYPES:
            yield _kv_write_case(setup, dtype, rows)
    yield from _sampling_cases(setup)


def _case(kernel: str, name: str, num_values: int, prepare: "partial[Prepared]") -> Case:
    """Of float32 values that stay in a cache, read or written once each."""
    bound = Bound(moved_bytes=4 * num_values, working_set_bytes=4 * num_values)
    return Case(kernel=kernel, name=name, bound=bound, prepare=prepare)


def _random(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(_SEED).standard_normal(shape).astype(np.float32)


def _rms_norm(setup: Setup, rows: int) -> Prepared:
    x, weight, eps = _random(rows, EMBED), _random(EMBED), 1e-5
    out = np.empty_like(x)

    def run(end: int = rows) -> None:
        rms_norm(x, weight, out, eps=eps, rows=(0, end), isa_cap=setup.isa_cap)

    def check() -> Verdict:
        run()
        exact = judge.rms_norm(x, weight, eps)
        size = np.abs(exact) + np.finfo(np.float64).tiny
        return Verdict(judge.relative_error(out, exact, size), 1e-6, "relative")

    return Prepared(run, check, partial(run, 0))


def _rope(setup: Setup, rows: int) -> Prepared:
    heads, head_dim = SMOLLM2.num_query_heads, SMOLLM2.head_dim
    frequencies = 1e4 ** (-np.arange(0, head_dim, 2) / head_dim)
    positions = np.arange(rows, dtype=np.int32)[::-1].copy()
    table, x = rope_table(frequencies.tolist(), rows), _random(rows, heads * head_dim)

    def turn(values: NDArray[np.float32], end: int = rows) -> None:
        rope(values, table, positions, num_heads=heads, interleaved=False, rows=(0, end),
             isa_cap=setup.isa_cap)  # fmt: skip

    def check() -> Verdict:
        found = _random(*x.shape)
        exact = judge.rope(found.copy(), positions[:, None] * frequencies, heads)
        turn(found)
        return Verdict(judge.relative_error(found, exact, 1.0), 2e-6, "of values of about 1")

    return Prepared(partial(turn, x), check, partial(turn, x, 0))


def _gated(setup: Setup, kind: Literal["silu", "gelu_tanh"], rows: int) -> Prepared:
    gate, up = _random(2, rows, HIDDEN)
    out = np.empty_like(gate)

    def run(end: int = rows) -> None:
        gated_activation(kind, gate, up, out, rows=(0, end), isa_cap=setup.isa_cap)

    def check() -> Verdict:
        run()
        exact = judge.gated(kind, gate, up)
        size = np.maximum(np.abs(exact), np.abs(up.astype(np.float64)))
        return Verdict(judge.relative_error(out, exact, size), 1e-6, "of the larger factor")

    return Prepared(run, check, partial(run, 0))


def _kv_write_case(setup: Setup, dtype: KvDtype, rows: int) -> Case:
    layout = KvLayout(
        block_size=BLOCK_SIZE,
        num_kv_heads=SMOLLM2.num_kv_heads,
        head_dim=SMOLLM2.head_dim,
        layers_per_group=1,
        dtype=dtype,
    )
    values = 2 * rows * SMOLLM2.num_kv_heads * SMOLLM2.head_dim
    moved = 4 * values + rows * layout.bytes_per_token
    return Case(
        kernel="kv_write",
        name=f"{dtype} 3x64 rows {rows}",
        bound=Bound(moved_bytes=moved, working_set_bytes=moved),
        prepare=partial(_kv_write, setup, layout, rows),
    )


def _kv_write(setup: Setup, layout: KvLayout, rows: int) -> Prepared:
    heads, head_dim = layout.num_kv_heads, layout.head_dim
    k, v = _random(2, rows, heads * head_dim)
    blocks = -(-rows // BLOCK_SIZE)
    storage = KvStorage(layout, blocks)
    slots = np.arange(rows, dtype=np.int64)

    def run(end: int = rows) -> None:
        kv_write(k, v, slots, storage.blocks, 0, layout, rows=(0, end), isa_cap=setup.isa_cap)

    def check() -> Verdict:
        """Bytes, since the layout says in NumPy which they are. Slots of nobody hold zeros."""
        storage.blocks[:] = 0
        run()
        wrong = 0
        for block in range(rows // BLOCK_SIZE):
            token = slice(block * BLOCK_SIZE, (block + 1) * BLOCK_SIZE)
            sides = (
                x[token].reshape(BLOCK_SIZE, heads, head_dim).swapaxes(0, 1)[None] for x in (k, v)
            )
            wrong += int((layout.pack(*sides) != storage.block(block)).sum())
        rest = rows % BLOCK_SIZE
        if rest:
            wrong += _wrong_values(layout, storage.block(blocks - 1), k[-rest:], v[-rest:])
        return Verdict(wrong, 0, "bytes that differ")

    return Prepared(run, check, partial(run, 0))


def _wrong_values(
    layout: KvLayout, block: NDArray[np.uint8], k: NDArray[np.float32], v: NDArray[np.float32]
) -> int:
    """Elements of the first tokens of a block that are not what the layout makes of them."""
    heads, head_dim = layout.num_kv_heads, layout.head_dim
    padded = np.zeros((2, BLOCK_SIZE, heads * head_dim), np.float32)
    padded[0, : len(k)], padded[1, : len(v)] = k, v
    sides = padded.reshape(2, BLOCK_SIZE, heads, head_dim).swapaxes(1, 2)[:, None]
    expected, found = layout.unpack(layout.pack(*sides)), layout.unpack(block)
    return sum(
        int((a[:, :, : len(k)] != b[:, :, : len(k)]).sum())
        for a, b in zip(expected, found, strict=True)
    )


GREEDY = SamplingParams(temperature=0)
NUCLEUS = SamplingParams(temperature=0.8, top_k=50, top_p=0.95)


def _sampling_cases(setup: Setup) -> Iterator[Case]:
    sizes = [(1, VOCAB), (32, VOCAB), (1, LARGE_VOCAB)]
    for rows, vocab in [(3, 5000)] if setup.quick else sizes:
        for name, params in (("greedy", GREEDY), ("top_k top_p", NUCLEUS)):
            yield Case(
                kernel="sampling",
                name=f"{name} {vocab} rows {rows}",
                bound=Bound(
                    moved_bytes=4 * rows * vocab,
                    working_set_bytes=4 * rows * vocab,
                    threads=min(setup.threads, rows),
                ),
                prepare=partial(_sampling, setup, params, rows, vocab),
            )


def _sampling(setup: Setup, params: SamplingParams, rows: int, vocab: int) -> Prepared:
    logits = 3 * _random(rows, vocab)
    states = [SamplingRow(params, seed=seed) for seed in range(rows)]
    sample = partial(sample_rows, pool=setup.pool, isa_cap=setup.isa_cap)

    def check() -> Verdict:
        tokens = sample(logits, states).tokens.tolist()
        if params.temperature == 0:
            wrong = float((logits.argmax(axis=1) != tokens).sum())
            return Verdict(wrong, 0, "tokens that are not the likeliest")
        errors = [
            judge.draw_error(
                row, token, uniform(seed, 0, 0),
                temperature=params.temperature, top_k=params.top_k, top_p=params.top_p,
            )
            for seed, (row, token) in enumerate(zip(logits, tokens, strict=True))
        ]  # fmt: skip
        return Verdict(max(errors), 1e-5, "of probability beside the token's share")

    return Prepared(lambda: sample(logits, states), check, lambda: sample(logits[:0], states[:0]))
