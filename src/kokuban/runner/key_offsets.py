"""What int8 leaves out of K: the part that is the same for every token of a layer.

A constant c in all keys adds q·c to every score of a row, and the softmax takes that away again. In
models with biases on K (Qwen2.5) that part is a hundred times larger than what differs between
tokens, and no scale should be spent on it. The rotary embedding turns the bias with the position,
but in the dimensions where it is large so slowly that c may be the bias itself.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from kokuban.program.ops import Attention, KvWrite, Linear, RmsNorm, Rope, Value
from kokuban.program.program import Program
from kokuban.program.rope import inverse_frequencies

POSITIONS = 8192
MOST_TURN = 0.5
"""Radians that a dimension may turn over so many positions to count as constant."""

Vector = NDArray[np.float32]
Place = tuple[str, int]
"""A buffer, and the first column in it."""


def key_offsets(
    program: Program, vectors: Mapping[str, Vector], rope_positions: int
) -> dict[int, Vector]:
    """By layer, c as [Hkv * D] float32; layers without a bias on K, or with a soft-cap, have none.

    Args:
        vectors: biases by name.
        rope_positions: as for the rotary tables. Nothing here depends on the size of the pool.
    """
    capped = {op.layer for op in program.body if isinstance(op, Attention) and op.softcap}
    offsets: dict[int, Vector] = {}
    biases: dict[Place, str | None] = {}
    ropes: list[Rope] = []
    for op in program.body:
        match op:
            case Linear():
                ropes.clear()
                biases = _biases(program, op)
            case RmsNorm():
                biases = {at: bias for at, bias in biases.items() if not _covers(op.out, at)}
            case Rope():
                ropes.append(op)
            case KvWrite() if op.layer not in capped:
                bias = biases.get(_place(op.k))
                if bias is not None:
                    rope = next((rope for rope in ropes if _covers(rope.x, _place(op.k))), None)
                    still = _still(program, rope, rope_positions)
                    heads = vectors[bias].reshape(-1, program.kv.head_dim)
                    offsets[op.layer] = (heads * still).astype(np.float32).reshape(-1)
    return offsets


def _place(value: Value) -> Place:
    return (value.name if value.parent is None else value.parent.name), value.offset


def _covers(value: Value, place: Place) -> bool:
    """Whether a value has that column; queries and keys are often turned together."""
    name, first = _place(value)
    return name == place[0] and first <= place[1] < first + value.cols


def _biases(program: Program, op: Linear) -> dict[Place, str | None]:
    """Where each weight's outputs begin, with the name of their bias."""
    name, offset = _place(op.out)
    found: dict[Place, str | None] = {}
    for weight, bias in zip(op.weights, op.biases, strict=False):
        found[name, offset] = bias
        offset += program.weights[weight].shape[0]
    return found


def _still(program: Program, rope: Rope | None, rope_positions: int) -> Vector:
    """[D]: the table's factor for dimensions that hardly turn, 0 for the others."""
    still = np.ones(program.kv.head_dim, np.float32)
    if rope is None:
        return still
    config = program.rope_tables[rope.table]
    frequencies, factor = inverse_frequencies(config, rope_positions)
    slow = np.where(np.array(frequencies) * POSITIONS <= MOST_TURN, factor, 0)
    turned = np.repeat(slow, 2) if config.interleaved else np.tile(slow, 2)
    still[: len(turned)] = turned
    return still
