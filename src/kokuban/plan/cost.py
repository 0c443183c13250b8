"""What steps, prompts and moves of KV cost on a machine, in seconds.

It prices recomputing against restoring, tells refused clients when to come back, and is the time of
the simulator. Planning formulas F2 (operation by operation, the slower of compute and memory) and
F24 (overheads), over the constants of `plan.machine`.

Operations of one shape are counted once and multiplied: a step is priced in microseconds.
"""

import copy
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from kokuban.plan.machine import MachineConstants
from kokuban.program.check import reads, weights_of, writes
from kokuban.program.cost import ChunkShape, StepSummary, attended_pairs, summarize, tokens_read
from kokuban.program.ops import Attention, Embed, Linear, Op, Rows, Value
from kokuban.program.program import Program

Tier = Literal["ram", "disk"]

_VALUE_BYTES = 4
_MIN_FLOAT_BITS = 16
"""Weights of fewer bits an element are quantised: the kernels multiply them as int8."""


class _Product(NamedTuple):
    """A Linear, as far as its time depends on it."""

    rows: Rows
    flops: int
    """For each row."""

    weight_bytes: int
    quantised: bool


class _Look(NamedTuple):
    """An Attention, as far as its time depends on it."""

    window: int | None
    flops: int
    """For each attended pair."""


class CostModel:
    """Seconds for one model on one machine. Immutable; every method is a function of its arguments.

    Args:
        weight_bytes: bytes of each weight as it is stored, by name.
        kv_bytes_per_token: K and V of one token in all layers, scales included.
        chunk_tokens: most tokens of a prompt that one step computes: the token budget.
    """

    def __init__(
        self,
        program: Program,
        *,
        weight_bytes: Mapping[str, int],
        kv_bytes_per_token: int,
        constants: MachineConstants,
        chunk_tokens: int = 2048,
    ) -> None:
        assert chunk_tokens >= 1, f"chunks of {chunk_tokens} tokens compute nothing"
        self._constants = constants
        self._kv = program.kv
        self._kv_bytes_per_token = kv_bytes_per_token
        self._layer_bytes = kv_bytes_per_token / program.kv.num_layers
        self._chunk_tokens = chunk_tokens
        ops = (*program.body, *program.head)
        self._products = Counter(
            _product(op, program, weight_bytes) for op in ops if isinstance(op, Linear)
        )
        self._looks = Counter(_look(op) for op in ops if isinstance(op, Attention))
        rest = [op for op in ops if not isinstance(op, Linear | Attention)]
        self._token_bytes = _value_bytes(rest, "T") + _embedding_bytes(
            rest, weight_bytes, program.vocab_size
        )
        self._row_bytes = _value_bytes(rest, "R")
        self._num_ops = len(program.body), len(program.head)

    @property
    def constants(self) -> MachineConstants:
        """The machine that the prices hold for."""
        return self._constants

    def on(self, constants: MachineConstants) -> "CostModel":
        """The same model on another machine."""
        other = copy.copy(self)
        other._constants = constants
        return other

    @property
    def kv_bytes_per_token(self) -> int:
        """K and V of one token in all layers."""
        return self._kv_bytes_per_token

    def step_s(self, step: StepSummary) -> float:
        """A whole step: each operation the slower of its compute and its memory, and overheads."""
        if step.num_tokens == 0:
            return self._constants.step_overhead_s
        return (
            self._products_s(step)
            + self._attention_s(step.attended_pairs, step.kv_tokens)
            + self._rest_s(step.num_tokens, step.num_rows)
            + self._overhead_s(step)
        )

    def prefill_s(self, start: int, num_tokens: int) -> float:
        """What it adds to steps that run anyway to compute tokens of one request, chunk by chunk.

        Weights are not counted, nor the overhead of a step: a request computes at least its last
        token, whatever is cached, so that step is there and has read them. A prompt of some dozens
        of tokens is bound by compute in any case.

        Args:
            start: tokens before them whose K and V are there.
            num_tokens: tokens to compute; 0 costs nothing.
        """
        return sum(
            self._marginal_s(ChunkShape(first, min(self._chunk_tokens, start + num_tokens - first)))
            for first in range(start, start + num_tokens, self._chunk_tokens)
        )

    def prompts_s(self, num_tokens: int, batch_size: int = 1) -> float:
        """A step that computes so many whole prompts and samples a token behind each."""
        prompt = ChunkShape(0, num_tokens, 1)
        return self.step_s(summarize([prompt] * batch_size, self._kv))

    def decode_s(self, context_tokens: int, batch_size: int = 1, num_drafts: int = 0) -> float:
        """A step in which so many requests, each with this context, compute the token sampled last.

        Args:
            context_tokens: of each request, the token that is computed included.
            num_drafts: draft tokens that they compute beside it, all together.
        """
        each, more = divmod(num_drafts, batch_size)
        shapes = [
            ChunkShape(context_tokens - 1, 1 + each + (i < more), 1 + each + (i < more))
            for i in range(batch_size)
        ]
        return self.step_s(summarize(shapes, self._kv))

    def restore_s(self, num_bytes: int, tier: Tier) -> float:
        """Bring bytes of KV up into the pool: from host memory, or from disk through it."""
        return self._move_s(num_bytes, tier, self._constants.disk_read_bytes_per_s)

    def store_s(self, num_bytes: int, tier: Tier) -> float:
        """Take bytes of KV down out of the pool: to host memory, or through it to disk."""
        return self._move_s(num_bytes, tier, self._constants.disk_write_bytes_per_s)

    def _move_s(self, num_bytes: int, tier: Tier, disk_bytes_per_s: float) -> float:
        """Between pool and host memory, and for the disk between that and the disk too."""
        if num_bytes == 0:
            return 0.0
        copied_s = num_bytes / self._constants.copy_bytes_per_s
        if tier == "ram":
            return copied_s
        return self._constants.disk_latency_s + num_bytes / disk_bytes_per_s + copied_s

    def _marginal_s(self, chunk: ChunkShape) -> float:
        windows = {look.window for look in self._looks}
        compute_s = sum(
            count * product.flops * chunk.num_tokens / self._flops_per_s(product)
            for product, count in self._products.items()
            if product.rows == "T"
        )
        attention_s = self._attention_s(
            {window: attended_pairs(chunk, window) for window in windows},
            {window: tokens_read(chunk, window) for window in windows},
        )
        return compute_s + attention_s + self._rest_s(chunk.num_tokens, 0)

    def _overhead_s(self, step: StepSummary) -> float:
        body, head = self._num_ops
        num_ops = body + head if step.num_rows else body
        return self._constants.step_overhead_s + num_ops * self._constants.op_overhead_s

    def _products_s(self, step: StepSummary) -> float:
        seconds = 0.0
        for product, count in self._products.items():
            rows = step.num_tokens if product.rows == "T" else step.num_rows
            if rows:
                compute_s = product.flops * rows / self._flops_per_s(product)
                memory_s = product.weight_bytes / self._constants.weight_bytes_per_s
                seconds += count * max(compute_s, memory_s)
        return seconds

    def _flops_per_s(self, product: _Product) -> float:
        if product.quantised:
            return self._constants.int8_flops_per_s
        return self._constants.float_flops_per_s

    def _attention_s(
        self, pairs: Mapping[int | None, int], kv_tokens: Mapping[int | None, int]
    ) -> float:
        return sum(
            count
            * max(
                look.flops * pairs[look.window] / self._constants.attention_flops_per_s,
                self._layer_bytes * kv_tokens[look.window] / self._constants.kv_bytes_per_s,
            )
            for look, count in self._looks.items()
        )

    def _rest_s(self, num_tokens: int, num_rows: int) -> float:
        """Values that norms and the like move, and what Python does for each token and row."""
        moved_bytes = self._token_bytes * num_tokens + self._row_bytes * num_rows
        return (
            moved_bytes / self._constants.value_bytes_per_s
            + self._constants.token_overhead_s * num_tokens
            + self._constants.row_overhead_s * num_rows
        )


def _product(op: Linear, program: Program, weight_bytes: Mapping[str, int]) -> _Product:
    num_bytes = sum(weight_bytes[name] for name in weights_of(op))
    matrix_bits = 8 * sum(weight_bytes[name] for name in op.weights)
    elements = sum(program.weights[name].shape[0] * op.x.cols for name in op.weights)
    return _Product(
        rows=op.x.rows,
        flops=2 * op.x.cols * op.out.cols,
        weight_bytes=num_bytes,
        quantised=matrix_bits < _MIN_FLOAT_BITS * elements,
    )


def _look(op: Attention) -> _Look:
    return _Look(op.window, 4 * op.num_query_heads * op.head_dim)


def _value_bytes(ops: Iterable[Op], rows: Rows) -> int:
    """Of the values with one row for each token ("T") or sampled row ("R"), for one of these."""
    values: list[Value] = [value for op in ops for value in (*reads(op), *writes(op))]
    return _VALUE_BYTES * sum(value.cols for value in values if value.rows == rows)


def _embedding_bytes(ops: Iterable[Op], weight_bytes: Mapping[str, int], vocab_size: int) -> int:
    """Of the one row that each token takes from the embedding."""
    return sum(weight_bytes[op.weight] // vocab_size for op in ops if isinstance(op, Embed))
