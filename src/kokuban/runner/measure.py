"""Measures the constants of `plan.machine` with the kernels that will run.

Each number is the typical one of many calls of about a millisecond: calls so short are mostly not
interrupted by others who use the machine. Weights, KV and what is copied are larger in all than a
core's caches, as a model's are; each call takes the next piece.
"""

import itertools
import os
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import numpy as np

from kokuban.kernels.attention import AttentionBatch, attention
from kokuban.kernels.elementwise import gated_activation
from kokuban.kernels.linear import PackedMatrix, linear, pack_matrix
from kokuban.kvcache.layout import KvLayout
from kokuban.kvcache.storage import KvStorage
from kokuban.plan.machine import MachineConstants

N, K = 1536, 576
"""Outputs and inputs of the matrix that is multiplied: an up projection of a small model."""

MEMORY_BYTES = 96 << 20
"""Of weights, of KV, and of what is copied: beyond what a core finds in its caches."""

DISK_BYTES = 64 << 20
NUM_ROWS = 64
"""Of a prompt's chunk: more are no faster for each of them."""

PIECE_BYTES = 4 << 20
"""Of KV that a call reads, and four times what a call copies."""

BLOCK_SIZE = 16
NUM_KV_HEADS, NUM_QUERY_HEADS, HEAD_DIM = 2, 14, 64
MIB = 1 << 20

Progress = Callable[[str], None]
"""Told what is measured next."""


class MachineBench:
    """Measures one machine.

    Args:
        pool: the native threads that compute.
        isa_cap: index into `core.env.ISA_LEVELS` of the best instruction set to use.
        directory: on the disk that is to be measured.
        budget_s: time for each number.
        memory_bytes, disk_bytes, num_rows: how much is read, written, multiplied at a time.
    """

    def __init__(
        self,
        *,
        pool: Any,
        threads: int,
        isa_cap: int,
        cpu: str,
        isa: str,
        directory: Path,
        budget_s: float = 0.6,
        memory_bytes: int = MEMORY_BYTES,
        disk_bytes: int = DISK_BYTES,
        num_rows: int = NUM_ROWS,
    ) -> None:
        self._pool = pool
        self._threads = threads
        self._isa_cap = isa_cap
        self._cpu, self._isa = cpu, isa
        self._directory = directory
        self._budget_s = budget_s
        self._memory_bytes, self._disk_bytes = memory_bytes, disk_bytes
        self._num_rows = num_rows

    def measure(self, progress: Progress = lambda what: None) -> MachineConstants:
        """All rates, in some seconds. Overheads are left at their guesses.

        Raises:
            OSError: the directory cannot be written.
        """
        progress("matrix products")
        quantised = self._matrices("Q4_1", 20, 32)
        int8 = self._product_flops_per_s(quantised)
        weights = self._weight_bytes_per_s(quantised)
        wide = self._product_flops_per_s(self._matrices("BF16", 2, 1))
        progress("attention and values")
        prompt, context = self._attention_flops_per_s(), self._kv_bytes_per_s()
        values = self._value_bytes_per_s()
        progress("copies and disk")
        copies = self._copy_bytes_per_s()
        write, read, latency = self._disk()
        return MachineConstants(
            int8_flops_per_s=int8,
            float_flops_per_s=wide,
            attention_flops_per_s=prompt,
            weight_bytes_per_s=weights,
            kv_bytes_per_s=context,
            value_bytes_per_s=values,
            copy_bytes_per_s=copies,
            disk_read_bytes_per_s=read,
            disk_write_bytes_per_s=write,
            disk_latency_s=latency,
            source="measured",
            cpu=self._cpu,
            isa=self._isa,
            threads=self._threads,
            date=datetime.now(UTC).date().isoformat(),
        )

    def _typical_s(self, call: Callable[[], object]) -> float:
        """Lower quartile of eight calls or more, the first left out: what others who use the
        machine meanwhile take, they take from the slower calls."""
        call()
        times: list[float] = []
        start = time.perf_counter()
        while len(times) < 8 or time.perf_counter() - start < self._budget_s:
            begin = time.perf_counter()
            call()
            times.append(time.perf_counter() - begin)
        return statistics.quantiles(times, n=4)[0]

    def _matrices(self, weight_type: str, block_bytes: int, elements: int) -> list[PackedMatrix]:
        raw = np.full(N * K // elements * block_bytes, 0x2C, np.uint8)
        return [
            pack_matrix(raw, weight_type, N, K, pool=self._pool)
            for _ in range(max(2, self._memory_bytes // raw.nbytes))
        ]

    def _product_flops_per_s(self, matrices: list[PackedMatrix]) -> float:
        return 2 * N * K * self._num_rows / self._product_s(matrices, self._num_rows)

    def _weight_bytes_per_s(self, matrices: list[PackedMatrix]) -> float:
        return matrices[0].num_bytes / self._product_s(matrices, 1)

    def _product_s(self, matrices: list[PackedMatrix], rows: int) -> float:
        x = np.random.default_rng(1).standard_normal((rows, K)).astype(np.float32)
        out = np.empty((rows, N), np.float32)
        turn = itertools.cycle(matrices)
        return self._typical_s(
            lambda: linear(next(turn), x, out=out, isa_cap=self._isa_cap, pool=self._pool)
        )

    def _attention_flops_per_s(self) -> float:
        context = 8 * self._num_rows
        pairs = sum(range(context - self._num_rows + 1, context + 1))
        work = 4 * pairs * NUM_QUERY_HEADS * HEAD_DIM
        return work / self._typical_s(self._attention(context, self._num_rows, 1))

    def _kv_bytes_per_s(self) -> float:
        per_token = 2 * NUM_KV_HEADS * HEAD_DIM * 2
        piece = min(PIECE_BYTES, self._memory_bytes // 2)
        attend = self._attention(piece // per_token, 1, self._memory_bytes // piece)
        return piece // per_token * per_token / self._typical_s(attend)

    def _attention(self, context: int, tokens: int, num_requests: int) -> Callable[[], None]:
        """A call of attention for the next one of some requests, with `tokens` new rows each."""
        layout = KvLayout(
            block_size=BLOCK_SIZE,
            num_kv_heads=NUM_KV_HEADS,
            head_dim=HEAD_DIM,
            layers_per_group=1,
            dtype="bf16",
        )
        count = -(-context // BLOCK_SIZE)
        storage = KvStorage(layout, count * num_requests)
        storage.blocks[:] = 0x3C
        ids = np.random.default_rng(7).permutation(count * num_requests).astype(np.int32)
        start = np.array([0, tokens], np.int32)
        batches = itertools.cycle(
            AttentionBatch(start, np.array([context], np.int32), table.reshape(1, count))
            for table in np.split(ids, num_requests)
        )
        q = np.ones((tokens, NUM_QUERY_HEADS * HEAD_DIM), np.float32)
        out = np.zeros_like(q)

        def attend() -> None:
            attention(
                q,
                storage.blocks,
                0,
                layout,
                next(batches),
                out,
                num_query_heads=NUM_QUERY_HEADS,
                scale=HEAD_DIM**-0.5,
                plan_threads=self._threads,
                thread_pool=self._pool,
                isa_cap=self._isa_cap,
            )

        return attend

    def _value_bytes_per_s(self) -> float:
        """Of an activation on one thread, times the threads: rows are split between them."""
        gate, up, out = np.ones((3, self._num_rows, N), np.float32)
        moved = gate.nbytes + up.nbytes + out.nbytes
        seconds = self._typical_s(
            lambda: gated_activation("silu", gate, up, out, isa_cap=self._isa_cap)
        )
        return self._threads * moved / seconds

    def _copy_bytes_per_s(self) -> float:
        piece = min(PIECE_BYTES // 4, self._memory_bytes)
        source = np.ones((self._memory_bytes // piece, piece), np.uint8)
        target = np.zeros_like(source)
        pairs = itertools.cycle(zip(target, source, strict=True))
        return piece / self._typical_s(lambda: np.copyto(*next(pairs)))

    def _disk(self) -> tuple[float, float, float]:
        """Bytes a second written and read, and the seconds before a small read comes back."""
        self._directory.mkdir(parents=True, exist_ok=True)
        # Random, so that no file system finds anything to compress.
        content = np.random.default_rng(3).bytes(self._disk_bytes)
        with NamedTemporaryFile(dir=self._directory, prefix="bench-") as file:
            descriptor = file.fileno()
            start = time.perf_counter()
            _write(descriptor, content)
            os.fsync(descriptor)
            write_s = time.perf_counter() - start
            # Half of the file in one go, then single pages of the other half.
            half = self._disk_bytes // 2
            read_s = _cold_read_s(descriptor, 0, half)
            places = [half + index * half // 16 for index in range(16)]
            latency_s = statistics.median(_cold_read_s(descriptor, at, 4096) for at in places)
        return self._disk_bytes / write_s, half / max(read_s - latency_s, read_s / 2), latency_s


def _write(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view[:MIB]) :]


def _cold_read_s(descriptor: int, offset: int, num_bytes: int) -> float:
    """Seconds to read from the disk what the page cache has been asked to forget."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    start = time.perf_counter()
    while num_bytes > 0:
        got = len(os.pread(descriptor, min(num_bytes, MIB), offset))
        if not got:
            break
        offset, num_bytes = offset + got, num_bytes - got
    return time.perf_counter() - start
