"""What each operation of a Program costs in a given step: FLOPs and bytes, as ints.

FLOPs are two for each multiply-add of a matrix product or an attention core, as everywhere in the
field. The rest of the operations count none: on every machine they are bound by bytes.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from kokuban.core.config import KvDtype
from kokuban.program.check import reads, weights_of, writes
from kokuban.program.ops import Attention, Embed, KvWrite, Linear, Op
from kokuban.program.program import KvSpec, Program

Kind = Literal["linear", "attention", "head", "other"]

_VALUE_BYTES = 4


class ChunkShape(NamedTuple):
    """The size of one request's part of a step."""

    start: int
    """Tokens whose K and V are in the cache already."""

    num_tokens: int
    num_rows: int = 0
    """Tokens of the chunk whose logits are computed."""


@dataclass(frozen=True, slots=True)
class StepSummary:
    """All that the cost of a step depends on."""

    num_tokens: int
    num_rows: int
    attended_pairs: Mapping[int | None, int]
    """By window (None: no window): pairs of a query token and a token that it attends to."""

    kv_tokens: Mapping[int | None, int]
    """By window: tokens whose K and V are read, each once for a chunk. Less where requests share
    blocks and these are read once for all."""


def summarize(chunks: Iterable[ChunkShape], kv: KvSpec) -> StepSummary:
    """Sum up a step in which no block is shared."""
    shapes = list(chunks)
    windows = {group.window for group in kv.groups}
    return StepSummary(
        num_tokens=sum(chunk.num_tokens for chunk in shapes),
        num_rows=sum(chunk.num_rows for chunk in shapes),
        attended_pairs={w: sum(attended_pairs(c, w) for c in shapes) for w in windows},
        kv_tokens={w: sum(tokens_read(c, w) for c in shapes) for w in windows},
    )


def attended_pairs(chunk: ChunkShape, window: int | None) -> int:
    """Sum over the chunk's tokens of how many tokens each attends to, itself included."""
    growing, capped = chunk.num_tokens, 0
    if window is not None:
        growing = min(max(window - chunk.start, 0), chunk.num_tokens)
        capped = chunk.num_tokens - growing
    pairs = growing * chunk.start + growing * (growing + 1) // 2
    return pairs + capped * (window or 0)


def tokens_read(chunk: ChunkShape, window: int | None) -> int:
    """Tokens that at least one token of the chunk attends to."""
    end = chunk.start + chunk.num_tokens
    return end if window is None else min(end, window - 1 + chunk.num_tokens)


class OpCost(NamedTuple):
    """FLOPs and bytes of one operation in one step."""

    kind: Kind
    flops: int = 0
    weight_bytes: int = 0
    kv_read_bytes: int = 0
    kv_write_bytes: int = 0
    value_bytes: int = 0
    """Of the float32 values that it reads and writes; these mostly stay in caches."""

    @property
    def memory_bytes(self) -> int:
        """What must come from memory, whatever the size of the caches: weights and K, V."""
        return self.weight_bytes + self.kv_read_bytes


def program_costs(
    program: Program,
    step: StepSummary,
    *,
    weight_bytes: Mapping[str, int],
    kv_dtype: KvDtype,
) -> Iterator[tuple[Op, OpCost]]:
    """Each operation of body and head with its cost.

    Args:
        weight_bytes: bytes of each weight as it is stored: `uniform_weight_bytes`, or the file's.
    """
    per_layer = program.kv.bytes_per_token(kv_dtype) // program.kv.num_layers
    for op in (*program.body, *program.head):
        cost = OpCost("other", weight_bytes=sum(weight_bytes[n] for n in weights_of(op)))
        match op:
            case Linear():
                kind: Kind = "head" if op.out == program.logits else "linear"
                cost = cost._replace(kind=kind, flops=_linear_flops(op, step))
            case Attention():
                cost = OpCost(
                    "attention",
                    flops=attention_flops(op, step.attended_pairs[op.window]),
                    kv_read_bytes=per_layer * step.kv_tokens[op.window],
                )
            case KvWrite():
                cost = cost._replace(kv_write_bytes=per_layer * step.num_tokens)
            case Embed():
                row_bytes = weight_bytes[op.weight] // program.vocab_size
                cost = cost._replace(weight_bytes=row_bytes * step.num_tokens)
        yield op, cost._replace(value_bytes=_value_bytes(op, step))


def attention_flops(op: Attention, pairs: int) -> int:
    """Scores and weighted sums: 2 FLOPs × 2 products × heads × head_dim for each attended pair."""
    return 4 * op.num_query_heads * op.head_dim * pairs


def uniform_weight_bytes(program: Program, bits: int) -> dict[str, int]:
    """Bytes of each weight when all of them have `bits` bits an element."""
    sizes = {}
    for name, spec in program.weights.items():
        elements = 1
        for extent in spec.shape:
            elements *= extent
        sizes[name] = -(-elements * bits // 8)
    return sizes


def total(costs: Iterable[OpCost], kind: Kind = "other") -> OpCost:
    """The sum, under the given kind."""
    fields = zip(*(cost[1:] for cost in costs), strict=True)
    return OpCost(kind, *(sum(field) for field in fields))


def _linear_flops(op: Linear, step: StepSummary) -> int:
    rows = step.num_tokens if op.x.rows == "T" else step.num_rows
    return 2 * rows * op.x.cols * op.out.cols


def _value_bytes(op: Op, step: StepSummary) -> int:
    return _VALUE_BYTES * sum(
        value.cols * (step.num_tokens if value.rows == "T" else step.num_rows)
        for value in (*reads(op), *writes(op))
    )
