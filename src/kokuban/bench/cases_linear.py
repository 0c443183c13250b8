"""Cases of the matrix product: every weight type, at the numbers of rows that steps have."""

import itertools
from collections.abc import Iterator
from functools import partial

import numpy as np

from kokuban.bench import judge
from kokuban.bench.kernel_case import Bound, Case, Prepared, Setup, Verdict
from kokuban.kernels.linear import (
    GROUP,
    WEIGHT_TYPES,
    Bytes,
    Floats,
    PackedMatrix,
    linear,
    pack_matrix,
)
from kokuban.weights.dequant import dequantize
from kokuban.weights.quant_types import TensorType
from kokuban.weights.quantize import quantize

ROWS, QUICK_ROWS = (1, 8, 32, 512), (1, 8, 32)

SHAPES = ((576, 1536), (896, 4864))
"""[n, k]: the down projections of SmolLM2-135M and Qwen2.5-0.5B. Their k suits every type."""

HEAD = (49152, 576)
"""The output head of SmolLM2-135M: rows that are sampled only."""

_SEED = 7
_EPS = 2.0**-24


def linear_cases(setup: Setup) -> Iterator[Case]:
    """Types by shapes by rows."""
    for weight_type, (n, k) in itertools.product(WEIGHT_TYPES, SHAPES[: 1 if setup.quick else 2]):
        weights = Weights(setup, weight_type, n, k)
        for rows in QUICK_ROWS if setup.quick else ROWS:
            yield weights.case(rows)
    if not setup.quick:
        head = Weights(setup, "Q8_0", *HEAD)
        for rows in (1, 8, 32):
            yield head.case(rows)


class Weights:
    """Matrices of one type and shape, made when a case needs them and shared by its cases."""

    def __init__(self, setup: Setup, weight_type: str, n: int, k: int) -> None:
        self._setup = setup
        self._type, self._n, self._k = TensorType[weight_type], n, k
        self._raw: Bytes | None = None
        self._packed: list[PackedMatrix] = []

    def case(self, rows: int) -> Case:
        """The product of so many rows."""
        n, k = self._n, self._k
        weight_bytes = self._type.num_bytes(n * k)
        return Case(
            kernel="linear",
            name=f"{self._type.name} {n}x{k} rows {rows}",
            bound=Bound(
                moved_bytes=weight_bytes + 4 * rows * (n + k),
                working_set_bytes=weight_bytes * self._copies,
                ops=2 * rows * n * k,
                arithmetic="int8" if self._type.quantized else "fma",
                threads=self._setup.threads,
            ),
            prepare=partial(self._prepare, rows),
        )

    @property
    def _copies(self) -> int:
        return max(2, -(-self._setup.cold_bytes // self._type.num_bytes(self._n * self._k)))

    def _prepare(self, rows: int) -> Prepared:
        if self._raw is None:
            self._raw = quantize(hard_weights(self._n, self._k), self._type)
            self._packed = [
                pack_matrix(self._raw, self._type.name, self._n, self._k, pool=self._setup.pool)
                for _ in range(self._copies)
            ]
        x = hard_inputs(rows, self._k)
        out = np.empty((rows, self._n), np.float32)
        turn = itertools.cycle(self._packed)
        product = partial(linear, isa_cap=self._setup.isa_cap, pool=self._setup.pool)
        return Prepared(
            run=lambda: product(next(turn), x, out=out),
            check=lambda: self._judge(x, product(self._packed[0], x)),
            overhead=lambda: product(self._packed[0], x[:0], out=out[:0]),
        )

    def _judge(self, x: Floats, found: Floats) -> Verdict:
        """Rounding only: in float32 the sum of k products strays by about sqrt(k) roundings of its
        largest partial sum, eight times that is never reached."""
        assert self._raw is not None
        weights = dequantize(self._raw, self._type).reshape(self._n, self._k)
        seen = judge.round_to_int8(x, GROUP) if self._type.quantized else x
        exact, size = judge.linear(weights, seen)
        limit = 8 * self._k**0.5 * _EPS
        return Verdict(judge.relative_error(found, exact, size), limit, "of the sum of magnitudes")


def hard_weights(n: int, k: int) -> Floats:
    """[n, k] normal numbers; the first rows are as large as a type's codes go, to saturate what
    adds in 16 bits."""
    weights = np.random.default_rng(_SEED).standard_normal((n, k)).astype(np.float32)
    weights[0] = 1
    weights[1] = -1
    weights[2, ::2], weights[2, 1::2] = 1, -1
    return weights


def hard_inputs(rows: int, k: int) -> Floats:
    """[rows, k] normal numbers; the last row has its largest code everywhere."""
    x = np.random.default_rng(_SEED + rows).standard_normal((rows, k)).astype(np.float32)
    x[-1] = 1
    return x
