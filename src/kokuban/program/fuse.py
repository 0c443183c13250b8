"""Changes to a Program that make it cheaper and leave every number as it is.

`take_rows_early`: behind the last attention a token needs nothing of the others, so what comes
there is computed for the sampled rows alone. Of a prompt that is one row: without this, more than
half a layer of its work is done for nothing (3 to 5 % of a prefill; docs/decisions/0022).
"""

from dataclasses import fields, replace
from typing import Any

from kokuban.program.check import check_program, reads, writes
from kokuban.program.ops import Attention, KvWrite, Op, TakeRows, Value
from kokuban.program.program import Program


def take_rows_early(program: Program) -> Program:
    """The same Program, with what follows the last use of the KV cache moved into the head.

    Raises:
        ModelError: the result does not fit together, so the Program did not.
    """
    last = max(i for i, op in enumerate(program.body) if isinstance(op, Attention | KvWrite))
    tail = program.body[last + 1 :]
    taken = [op for op in program.head if isinstance(op, TakeRows)]
    rest = [op for op in program.head if not isinstance(op, TakeRows)]
    if not tail or [op.x for op in taken] != [program.hidden]:
        return program
    needed = _needed(tail)
    # What the head took before is now what the tail leaves.
    joins = {op.out: _in_head(op.x) for op in taken}
    head = (
        *(TakeRows(value, _in_head(value)) for value in needed),
        *(
            _changed(op, {value: _in_head(value) for value in (*reads(op), *writes(op))})
            for op in tail
        ),
        *(_changed(op, joins) for op in rest),
    )
    changed = replace(
        program, body=program.body[: last + 1], head=head, hidden=_in_head(program.hidden)
    )
    check_program(changed)
    return changed


def _needed(ops: tuple[Op, ...]) -> list[Value]:
    """Values that the operations read and that none of them has written before, in that order."""
    needed: dict[Value, None] = {}
    written: set[str] = set()
    for op in ops:
        for value in reads(op):
            root = value if value.parent is None else value.parent
            if root.name not in written:
                needed[root] = None
        written |= {
            value.name if value.parent is None else value.parent.name for value in writes(op)
        }
    return list(needed)


def _in_head(value: Value) -> Value:
    """The value of the same columns whose rows are the sampled ones."""
    parent = None if value.parent is None else _in_head(value.parent)
    return Value(f"{value.name}.sampled", "R", value.cols, parent, value.offset)


def _changed(op: Op, values: dict[Value, Value]) -> Op:
    """The operation with other values; those that are not named stay."""
    found = {field.name: getattr(op, field.name) for field in fields(op)}
    changes: dict[str, Any] = {
        name: values[value]
        for name, value in found.items()
        if isinstance(value, Value) and value in values
    }
    return replace(op, **changes)
