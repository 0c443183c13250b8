"""Lowers a Program to the native one: buffers for its values, one native call for each operation.

A value that is a range of columns becomes (buffer, first column, columns) of its parent's buffer.
Which KV group a layer is in, and where in it, is worked out here once.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kokuban.program.ops import (
    Add,
    Attention,
    Embed,
    GatedActivation,
    KvWrite,
    Linear,
    RmsNorm,
    Rope,
    Softcap,
    TakeRows,
    Value,
)
from kokuban.program.program import Program
from kokuban.runner.load import LoadedWeights

ACTIVATIONS = ("silu", "gelu_tanh", "relu")
"""By the native index."""

Columns = tuple[int, int, int]


class Lowering:
    """One Program on its way into a native one. Call `lower` once."""

    def __init__(
        self,
        program: Program,
        weights: LoadedWeights,
        rope_tables: tuple[NDArray[np.float32], ...],
        native: Any,
        key_offsets: Mapping[int, NDArray[np.float32]],
    ) -> None:
        self._program = program
        self._weights = weights
        self._rope_tables = rope_tables
        self._native = native
        self._key_offsets = key_offsets
        self._buffers: dict[str, int] = {}
        self._place = {
            layer: (index, place)
            for index, group in enumerate(program.kv.groups)
            for place, layer in enumerate(group.layers)
        }
        # Functions, not bound methods: a cycle would hold the KV pool until it is collected.
        self._emit: Mapping[type, Callable[[Lowering, Any], None]] = {
            Embed: Lowering._embed,
            RmsNorm: Lowering._rms_norm,
            Linear: Lowering._linear,
            Rope: Lowering._rope,
            KvWrite: Lowering._kv_write,
            Attention: Lowering._attention,
            Add: Lowering._add,
            GatedActivation: Lowering._gated,
            Softcap: Lowering._softcap,
            TakeRows: Lowering._take_rows,
        }

    def lower(self) -> Columns:
        """Emit every operation, then tell the native program that this was all.

        Returns:
            Where the head has the hidden states of its rows, after the final norm.
        """
        for op in (*self._program.body, *self._program.head):
            self._emit[type(op)](self, op)
        self._native.finish(self._columns(self._program.logits)[0])
        hidden = self._program.hidden
        if hidden.rows == "R":
            return self._columns(hidden)
        takes = [op for op in self._program.head if isinstance(op, TakeRows) and op.x == hidden]
        return self._columns(takes[0].out)

    def _columns(self, value: Value) -> Columns:
        root = value if value.parent is None else value.parent
        if root.name not in self._buffers:
            self._buffers[root.name] = self._native.buffer(root.cols)
        return self._buffers[root.name], value.offset, value.cols

    def _embed(self, op: Embed) -> None:
        table = self._weights.embedding
        self._native.embed(
            self._columns(op.out), table.data, table.type_id, table.row_bytes, op.scale
        )

    def _rms_norm(self, op: RmsNorm) -> None:
        weight = self._weights.vectors[op.weight]
        self._native.rms_norm(self._columns(op.x), weight, op.eps, self._columns(op.out))

    def _linear(self, op: Linear) -> None:
        weights = [self._weights.matrices[name].native for name in op.weights]
        names = op.biases or (None,) * len(op.weights)
        biases = [None if name is None else self._weights.vectors[name] for name in names]
        self._native.linear(self._columns(op.x), weights, biases, self._columns(op.out))

    def _rope(self, op: Rope) -> None:
        config = self._program.rope_tables[op.table]
        self._native.rope(
            self._columns(op.x),
            op.num_heads,
            op.head_dim,
            self._rope_tables[op.table],
            config.interleaved,
        )

    def _kv_write(self, op: KvWrite) -> None:
        group, place = self._place[op.layer]
        offset = self._key_offsets.get(op.layer)
        self._native.kv_write(self._columns(op.k), self._columns(op.v), group, place, offset)

    def _attention(self, op: Attention) -> None:
        group, place = self._place[op.layer]
        self._native.attention(
            self._columns(op.q),
            self._columns(op.out),
            group,
            place,
            op.num_query_heads,
            op.scale,
            op.window or 0,
            op.softcap or 0.0,
        )

    def _add(self, op: Add) -> None:
        self._native.add(self._columns(op.a), self._columns(op.b), self._columns(op.out))

    def _gated(self, op: GatedActivation) -> None:
        kind = ACTIVATIONS.index(op.kind)
        self._native.gated(
            kind, self._columns(op.gate), self._columns(op.up), self._columns(op.out)
        )

    def _softcap(self, op: Softcap) -> None:
        self._native.softcap(self._columns(op.x), op.cap)

    def _take_rows(self, op: TakeRows) -> None:
        # The body collects these rows; what follows is the head.
        self._native.take_rows(self._columns(op.x), self._columns(op.out))
