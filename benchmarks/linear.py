"""What fraction of the memory's bandwidth and of the int8 peak do the matrix products reach?

For each type and shape: check against float64 on a few rows first, then time. Few rows are bound by
bytes (GB/s of packed weight), many by arithmetic (GOP/s, a multiplication and an addition each).
Each figure is a median. Weights are rotated through copies that together exceed the L3 cache, as
the layers of a model do.

    python benchmarks/linear.py --types Q4_1 Q8_0 --threads 1
"""

import argparse
import statistics
import time

import kokuban._native as _native
import numpy as np

from kokuban.kernels.linear import PackedMatrix, linear, pack_matrix, unpack_matrix

SHAPES = ((576, 576), (1536, 576), (576, 1536), (49152, 576), (896, 4864), (4864, 896))
"""(n, k) of SmolLM2-135M and Qwen2.5-0.5B; K-quants take those with k a multiple of 256."""

ROWS = (1, 8, 32, 512)
COPIES_BYTES = 64 << 20
BLOCKS = {"F32": (1, 4), "F16": (1, 2), "BF16": (1, 2), "Q4_0": (32, 18), "Q4_1": (32, 20)}
BLOCKS |= {"Q5_0": (32, 22), "Q5_1": (32, 24), "Q8_0": (32, 34), "Q2_K": (256, 84)}
BLOCKS |= {"Q3_K": (256, 110), "Q4_K": (256, 144), "Q5_K": (256, 176), "Q6_K": (256, 210)}
_HALVES = {"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,)}


def stored(weight_type: str, n: int, k: int) -> np.ndarray:
    """Any codes, small scales."""
    rng = np.random.default_rng(0)
    elements, size = BLOCKS[weight_type]
    if elements == 1:
        return np.full(n * k * size, 0x3C, np.uint8)
    blocks = rng.integers(0, 256, (n * k // elements, size), dtype=np.uint8)
    for place in _HALVES.get(weight_type, (0, 2) if size in (20, 24, 144, 176) else (0,)):
        blocks[:, place : place + 2] = np.frombuffer(np.float16(0.01).tobytes(), np.uint8)
    return blocks.reshape(-1)


def check(matrix: PackedMatrix, x: np.ndarray, isa_cap: int) -> None:
    """Refuse to time what is wrong."""
    weights = unpack_matrix(matrix)
    exact = x.astype(np.float64) @ weights.T
    error = np.linalg.norm(linear(matrix, x, isa_cap=isa_cap) - exact) / np.linalg.norm(exact)
    assert error < 0.02, f"{matrix.weight_type} {matrix.n}x{matrix.k}: relative error {error}"


def seconds(
    matrices: list[PackedMatrix], x: np.ndarray, isa_cap: int, pool: object, budget_s: float
) -> float:
    """Median time of one product, at least 5 of them."""
    out = np.empty((len(x), matrices[0].n), np.float32)
    times: list[float] = []
    start = time.perf_counter()
    while len(times) < 5 or time.perf_counter() - start < budget_s:
        matrix = matrices[len(times) % len(matrices)]
        begin = time.perf_counter()
        linear(matrix, x, out=out, isa_cap=isa_cap, pool=pool)
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def main() -> None:
    """Print one line for each type, shape and number of rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--types", nargs="+", default=list(BLOCKS), choices=list(BLOCKS))
    parser.add_argument("--rows", nargs="+", type=int, default=list(ROWS))
    parser.add_argument("--shapes", nargs="+", default=[f"{n}x{k}" for n, k in SHAPES])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--isa-cap", type=int, default=-1, help="index into core.env.ISA_LEVELS")
    parser.add_argument("--budget-s", type=float, default=0.2, help="time for each figure")
    options = parser.parse_args()
    pool = _native.ThreadPool(options.threads) if options.threads > 1 else None
    print(f"isa level {_native.isa_level(options.isa_cap)}, {options.threads} threads")
    print(f"{'type':5} {'n x k':>12} {'rows':>4} {'ms':>9} {'GB/s':>7} {'GOP/s':>7}")
    for weight_type in options.types:
        for n, k in (map(int, shape.split("x")) for shape in options.shapes):
            if k % BLOCKS[weight_type][0]:
                continue
            raw = stored(weight_type, n, k)
            copies = max(1, min(64, COPIES_BYTES // raw.nbytes))
            matrices = [pack_matrix(raw, weight_type, n, k) for _ in range(copies)]
            for rows in options.rows:
                x = np.random.default_rng(1).standard_normal((rows, k)).astype(np.float32)
                check(matrices[0], x[:4], options.isa_cap)
                taken = seconds(matrices, x, options.isa_cap, pool, options.budget_s)
                gbs = matrices[0].num_bytes / taken / 1e9
                gops = 2 * n * k * rows / taken / 1e9
                shape = f"{n}x{k}"
                figures = f"{taken * 1e3:9.3f} {gbs:7.2f} {gops:7.1f}"
                print(f"{weight_type:5} {shape:>12} {rows:4} {figures}", flush=True)


if __name__ == "__main__":
    main()
