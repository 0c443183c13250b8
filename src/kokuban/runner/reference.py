"""The reference backend: a Program in NumPy and float64, slow and obviously right. A judge.

It shares no kernel, no layout and no order of sums with the native backend. KV is a plain list of
rows for each layer, kept in float64 and never rounded. It runs one sequence.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from kokuban.core.model_config import RopeConfig
from kokuban.models.registry import build_program
from kokuban.program.ops import (
    Add,
    Attention,
    Embed,
    GatedActivation,
    KvWrite,
    Linear,
    Op,
    RmsNorm,
    Rope,
    Softcap,
    TakeRows,
    Value,
)
from kokuban.program.program import Program
from kokuban.program.rope import inverse_frequencies
from kokuban.weights.dequant import dequantize_tensor
from kokuban.weights.source import ModelSource, check_tensors

Floats = NDArray[np.float64]


class ReferenceModel:
    """A Program with its weights.

    Args:
        weights: dequantised arrays by the Program's names, matrices as [n, k]; any float type, norm
            offsets already added. They are widened where they are used, not copied at once.
        max_positions: passed to the rotary frequencies (longrope only).
    """

    def __init__(
        self,
        program: Program,
        weights: Mapping[str, NDArray[np.floating]],
        *,
        max_positions: int = 0,
    ) -> None:
        for name, spec in program.weights.items():
            assert weights[name].shape == spec.shape, (name, weights[name].shape, spec.shape)
        self.program = program
        self._weights = weights
        self._rope = [inverse_frequencies(table, max_positions) for table in program.rope_tables]

    def logits(self, token_ids: Sequence[int]) -> Floats:
        """Logits after each token of one sequence: [T, V]."""
        return self.start().append(token_ids)

    def hidden(self, token_ids: Sequence[int]) -> Floats:
        """What the output matrix is multiplied by after each token of one sequence: [T, E]."""
        sequence = self.start()
        sequence.append(token_ids)
        return sequence.hidden

    def start(self) -> "ReferenceSequence":
        """An empty sequence, to be appended to in chunks of any size."""
        return ReferenceSequence(self.program, self._weights, self._rope)


def load_reference(source: ModelSource) -> ReferenceModel:
    """The model of a file, every weight dequantised to float32: four bytes a parameter.

    Raises:
        ModelError: the file does not hold what its architecture needs.
    """
    config = source.config
    program = build_program(config)
    check_tensors(source, {name: spec.shape for name, spec in program.weights.items()})
    weights = {}
    for name in program.weights:
        weights[name] = dequantize_tensor(source.tensor(name))
        if name.endswith("norm.weight"):
            weights[name] = weights[name] + np.float32(config.norm_weight_offset)
    return ReferenceModel(program, weights, max_positions=config.max_positions)


class ReferenceSequence:
    """One sequence and its K and V so far."""

    def __init__(
        self,
        program: Program,
        weights: Mapping[str, NDArray[np.floating]],
        rope: list[tuple[list[float], float]],
    ) -> None:
        self._program = program
        self._weights = weights
        self._rope = rope
        self._keys: dict[int, list[Floats]] = {}
        self._values: dict[int, list[Floats]] = {}
        self._buffers: dict[str, Floats] = {}
        self._token_ids: Sequence[int] = ()
        self._rows: Sequence[int] = ()
        self.length = 0
        """Tokens whose K and V are kept."""

    def append(self, token_ids: Sequence[int], rows: Sequence[int] | None = None) -> Floats:
        """Run the next chunk.

        Args:
            rows: indices into the chunk whose logits are wanted; None: all.

        Returns:
            [len(rows), V].
        """
        self._token_ids = token_ids
        self._rows = range(len(token_ids)) if rows is None else rows
        self._buffers = {}
        for op in (*self._program.body, *self._program.head):
            self._run(op)
        self.length += len(token_ids)
        return self._read(self._program.logits).copy()

    @property
    def hidden(self) -> Floats:
        """The hidden states of the last chunk, after the final norm."""
        return self._read(self._program.hidden).copy()

    def _weight(self, name: str) -> Floats:
        return np.asarray(self._weights[name], np.float64)

    def _read(self, value: Value) -> Floats:
        if value.parent is None:
            return self._buffers[value.name]
        return self._buffers[value.parent.name][:, value.offset : value.offset + value.cols]

    def _write(self, value: Value, rows: Floats) -> None:
        assert rows.shape[1] == value.cols, (value, rows.shape)
        if value.parent is None:
            self._buffers[value.name] = np.array(rows)
        else:
            self._read(value)[...] = rows

    def _run(self, op: Op) -> None:
        match op:
            case Embed():
                rows = np.asarray(self._weights[op.weight][list(self._token_ids)], np.float64)
                self._write(op.out, op.scale * rows)
            case RmsNorm():
                x = self._read(op.x).reshape(-1, op.dim)
                scale = 1 / np.sqrt((x * x).mean(axis=1, keepdims=True) + op.eps)
                normed = x * scale * self._weight(op.weight)
                self._write(op.out, normed.reshape(-1, op.out.cols))
            case Linear():
                self._write(op.out, self._linear(op))
            case Rope():
                self._rotate(op)
            case KvWrite():
                self._keys.setdefault(op.layer, []).extend(self._read(op.k).copy())
                self._values.setdefault(op.layer, []).extend(self._read(op.v).copy())
            case Attention():
                self._write(op.out, self._attend(op))
            case TakeRows():
                self._write(op.out, self._read(op.x)[list(self._rows)])
            case Add() | GatedActivation() | Softcap():
                self._elementwise(op)

    def _elementwise(self, op: Add | GatedActivation | Softcap) -> None:
        match op:
            case Add():
                self._write(op.out, self._read(op.a) + self._read(op.b))
            case GatedActivation():
                activation = ACTIVATIONS[op.kind]
                self._write(op.out, activation(self._read(op.gate)) * self._read(op.up))
            case Softcap():
                self._write(op.x, op.cap * np.tanh(self._read(op.x) / op.cap))

    def _linear(self, op: Linear) -> Floats:
        x = self._read(op.x)
        parts = [x @ self._weight(name).T for name in op.weights]
        for i, bias in enumerate(op.biases):
            if bias is not None:
                parts[i] = parts[i] + self._weight(bias)
        return np.concatenate(parts, axis=1)

    def _rotate(self, op: Rope) -> None:
        config: RopeConfig = self._program.rope_tables[op.table]
        frequencies, factor = self._rope[op.table]
        half = config.rotary_dim // 2
        x = self._read(op.x).copy().reshape(-1, op.num_heads, op.head_dim)
        positions = self.length + np.arange(len(x))
        angles = positions[:, None, None] * np.array(frequencies)
        cos, sin = factor * np.cos(angles), factor * np.sin(angles)
        if config.interleaved:
            first, second = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
        else:
            first, second = slice(0, half), slice(half, 2 * half)
        a, b = x[..., first].copy(), x[..., second].copy()
        x[..., first] = a * cos - b * sin
        x[..., second] = b * cos + a * sin
        self._write(op.x, x.reshape(-1, op.x.cols))

    def _attend(self, op: Attention) -> Floats:
        keys = np.array(self._keys[op.layer]).reshape(-1, op.num_kv_heads, op.head_dim)
        values = np.array(self._values[op.layer]).reshape(-1, op.num_kv_heads, op.head_dim)
        q = self._read(op.q).reshape(-1, op.num_query_heads, op.head_dim)
        query_at = self.length + np.arange(len(q))[:, None]
        key_at = np.arange(len(keys))[None, :]
        visible = key_at <= query_at
        if op.window is not None:
            visible &= key_at > query_at - op.window
        out = np.zeros_like(q)
        for h in range(op.num_query_heads):
            kv = h // (op.num_query_heads // op.num_kv_heads)
            scores = op.scale * (q[:, h] @ keys[:, kv].T)
            if op.softcap is not None:
                scores = op.softcap * np.tanh(scores / op.softcap)
            scores = np.where(visible, scores, -np.inf)
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            out[:, h] = weights @ values[:, kv] / weights.sum(axis=1, keepdims=True)
        return out.reshape(-1, op.out.cols)


def relu(x: Floats) -> Floats:
    """max(x, 0)."""
    return np.maximum(x, 0.0)


def silu(x: Floats) -> Floats:
    """x / (1 + exp(-x)), written with tanh so that large negative x does not overflow."""
    return np.asarray(x * 0.5 * (1 + np.tanh(0.5 * x)))


def gelu_tanh(x: Floats) -> Floats:
    """The tanh form of GELU. Source: Hendrycks and Gimpel 2016, section 2."""
    return np.asarray(0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))))


ACTIVATIONS: Mapping[str, Callable[[Floats], Floats]] = {
    "silu": silu,
    "gelu_tanh": gelu_tanh,
    "relu": relu,
}
