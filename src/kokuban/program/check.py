"""Do the sizes of a Program fit together? Asked once, before anything runs it."""

from collections.abc import Iterator
from itertools import chain

from kokuban.core.errors import ModelError
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


def check_program(program: Program) -> None:
    """Check columns, rows, weight shapes, heads and layers of every operation.

    Raises:
        ModelError: names the first operation that does not fit, and both sizes.
    """
    written: set[str] = set()
    for part, ops in (("body", program.body), ("head", program.head)):
        for index, op in enumerate(ops):
            where = f"{program.name}: {part}[{index}] {type(op).__name__}"
            for problem in chain(_name_problems(op, program), _problems(op, program)):
                raise ModelError(f"{where}: {problem}")
            for value in reads(op):
                if _root(value) not in written:
                    raise ModelError(f"{where} reads {value.name!r}, which nothing has written")
            written.update(_root(value) for value in writes(op))
    if _root(program.logits) not in written or program.logits.cols != program.vocab_size:
        raise ModelError(
            f"{program.name}: the head must write logits of {program.vocab_size} columns, "
            f"{program.logits.name!r} has {program.logits.cols}"
        )
    _check_groups(program)


def reads(op: Op) -> tuple[Value, ...]:
    """The values that an operation reads; K and V of the cache are none."""
    match op:
        case Embed():
            return ()
        case RmsNorm(x=x) | Linear(x=x) | Rope(x=x) | Softcap(x=x) | TakeRows(x=x):
            return (x,)
        case KvWrite(k=k, v=v):
            return (k, v)
        case Attention(q=q):
            return (q,)
        case Add(a=a, b=b):
            return (a, b)
        case GatedActivation(gate=gate, up=up):
            return (gate, up)


def writes(op: Op) -> tuple[Value, ...]:
    """The values that an operation writes; none for KvWrite."""
    match op:
        case KvWrite():
            return ()
        case Rope(x=x) | Softcap(x=x):
            return (x,)
        case _:
            return (op.out,)


def weights_of(op: Op) -> tuple[str, ...]:
    """The names of the weights that an operation reads."""
    match op:
        case Embed(weight=weight) | RmsNorm(weight=weight):
            return (weight,)
        case Linear(weights=weights, biases=biases):
            return (*weights, *(bias for bias in biases if bias is not None))
        case _:
            return ()


def _name_problems(op: Op, program: Program) -> Iterator[str]:
    for name in weights_of(op):
        if name not in program.weights:
            yield f"weight {name!r} is not declared"
    for value in (*reads(op), *writes(op)):
        if value.parent is not None and value.offset + value.cols > value.parent.cols:
            yield (
                f"{value.name!r} ends at column {value.offset + value.cols}, "
                f"but {value.parent.name!r} has {value.parent.cols}"
            )


def _problems(op: Op, program: Program) -> Iterator[str]:
    match op:
        case Embed():
            yield from _weight_problems(program, op.weight, (program.vocab_size, op.out.cols))
        case RmsNorm():
            yield from _norm_problems(op, program)
        case Linear():
            yield from _linear_problems(op, program)
        case Rope():
            yield from _rope_problems(op, program)
        case KvWrite() | Attention():
            yield from _cache_problems(op, program)
        case Add() | GatedActivation():
            yield from _equal(*reads(op), op.out)
        case TakeRows():
            if (op.x.rows, op.out.rows) != ("T", "R") or op.x.cols != op.out.cols:
                yield f"takes {_size(op.x)} to {_size(op.out)}"
        case Softcap():
            pass


def _norm_problems(op: RmsNorm, program: Program) -> Iterator[str]:
    yield from _equal(op.x, op.out)
    yield from _weight_problems(program, op.weight, (op.dim,))
    if op.x.cols % op.dim:
        yield f"{op.x.name!r} has {op.x.cols} columns, no multiple of dim {op.dim}"


def _linear_problems(op: Linear, program: Program) -> Iterator[str]:
    if op.x.rows != op.out.rows:
        yield f"takes {_size(op.x)} to {_size(op.out)}"
    outputs = [program.weights[name].shape[0] for name in op.weights]
    for name, n in zip(op.weights, outputs, strict=True):
        yield from _weight_problems(program, name, (n, op.x.cols))
    if sum(outputs) != op.out.cols:
        yield f"weights have {sum(outputs)} outputs, {op.out.name!r} has {op.out.cols} columns"
    if op.biases and len(op.biases) != len(op.weights):
        yield f"has {len(op.biases)} biases for {len(op.weights)} weights"
        return
    for bias, n in zip(op.biases, outputs, strict=False):
        if bias is not None:
            yield from _weight_problems(program, bias, (n,))


def _rope_problems(op: Rope, program: Program) -> Iterator[str]:
    yield from _heads(op.x, op.num_heads, op.head_dim)
    if not 0 <= op.table < len(program.rope_tables):
        yield f"table {op.table} is none of {len(program.rope_tables)}"
    elif program.rope_tables[op.table].rotary_dim > op.head_dim:
        rotary_dim = program.rope_tables[op.table].rotary_dim
        yield f"rotates {rotary_dim} dimensions of heads of {op.head_dim}"


def _cache_problems(op: KvWrite | Attention, program: Program) -> Iterator[str]:
    kv = program.kv
    windows = {layer: group.window for group in kv.groups for layer in group.layers}
    if op.layer not in windows:
        yield f"layer {op.layer} is in no KV group"
        return
    match op:
        case KvWrite():
            yield from _heads(op.k, kv.num_kv_heads, kv.head_dim)
            yield from _heads(op.v, kv.num_kv_heads, kv.head_dim)
        case Attention():
            yield from _heads(op.q, op.num_query_heads, op.head_dim)
            yield from _equal(op.q, op.out)
            if (op.num_kv_heads, op.head_dim) != (kv.num_kv_heads, kv.head_dim):
                yield (
                    f"reads {op.num_kv_heads} KV heads of {op.head_dim}, "
                    f"the cache holds {kv.num_kv_heads} of {kv.head_dim}"
                )
            if op.num_query_heads % op.num_kv_heads:
                yield f"{op.num_query_heads} query heads are no multiple of {op.num_kv_heads}"
            if op.window != windows[op.layer]:
                yield f"window {op.window}, but the KV group keeps {windows[op.layer]}"


def _check_groups(program: Program) -> None:
    sizes = {len(group.layers) for group in program.kv.groups}
    if len(sizes) != 1:
        raise ModelError(f"{program.name}: KV groups hold unlike numbers of layers: {sizes}")
    layers = sorted(layer for group in program.kv.groups for layer in group.layers)
    if layers != list(range(len(layers))):
        raise ModelError(f"{program.name}: KV groups hold the layers {layers}")


def _weight_problems(program: Program, name: str, shape: tuple[int, ...]) -> Iterator[str]:
    have = program.weights[name].shape
    if have != shape:
        yield f"weight {name!r} is {list(have)} where {list(shape)} is needed"


def _heads(value: Value, num_heads: int, head_dim: int) -> Iterator[str]:
    if value.cols != num_heads * head_dim:
        yield (
            f"{value.name!r} has {value.cols} columns, "
            f"{num_heads} heads of {head_dim} need {num_heads * head_dim}"
        )


def _equal(first: Value, *others: Value) -> Iterator[str]:
    for other in others:
        if (first.rows, first.cols) != (other.rows, other.cols):
            yield f"{_size(first)} and {_size(other)} must be equal"


def _size(value: Value) -> str:
    return f"{value.name!r} ({value.rows} × {value.cols})"


def _root(value: Value) -> str:
    return value.name if value.parent is None else value.parent.name
