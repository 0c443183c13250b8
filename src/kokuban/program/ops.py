"""The operations of a Program and the values between them.

A value is a float32 matrix of `rows` × `cols`: one row for each token of the step ("T") or for
each row that is sampled ("R"). Heads lie side by side in a row, head h in columns
h * head_dim up to (h + 1) * head_dim. A value can be a range of columns of another one, which is
how a joined projection is taken apart without a copy.

Weights are named as in GGUF files ("blk.0.attn_q.weight"): `weights.names` maps other formats.
"""

from dataclasses import dataclass
from typing import Literal

Rows = Literal["T", "R"]


@dataclass(frozen=True, slots=True)
class Value:
    """A float32 matrix that one operation writes and later ones read."""

    name: str
    rows: Rows
    cols: int
    parent: "Value | None" = None
    """The value whose columns these are; None when it has memory of its own."""

    offset: int = 0
    """First column inside the parent."""

    def columns(self, name: str, offset: int, cols: int) -> "Value":
        """A view of some columns. Views of views refer to the outermost value."""
        root, base = (self, 0) if self.parent is None else (self.parent, self.offset)
        return Value(name, self.rows, cols, root, base + offset)


@dataclass(frozen=True, slots=True)
class Embed:
    """out[t] = scale * weight[token_ids[t]]."""

    weight: str
    out: Value
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class RmsNorm:
    """out = x / sqrt(mean(x²) + eps) * weight, over each run of `dim` columns (a head, or all)."""

    x: Value
    weight: str
    eps: float
    dim: int
    out: Value
    """May be x itself."""


@dataclass(frozen=True, slots=True)
class Linear:
    """out = x · concat(weights)ᵀ + concat(biases).

    Several weights share one input: their outputs lie side by side in `out`, in this order.
    """

    x: Value
    weights: tuple[str, ...]
    """Each [n, k], row-major: n outputs of k inputs."""

    out: Value
    biases: tuple[str | None, ...] = ()
    """Empty, or one for each weight."""


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotate each head of x in place, by the token's position and the table's frequencies."""

    x: Value
    num_heads: int
    head_dim: int
    table: int
    """Index into `Program.rope_tables`."""


@dataclass(frozen=True, slots=True)
class KvWrite:
    """Store this step's K and V of one layer in the cache, at each token's slot."""

    k: Value
    v: Value
    layer: int


@dataclass(frozen=True, slots=True)
class Attention:
    """Causal attention of each token over its request's cache, this step's K and V included.

    Query head h reads KV head h // (num_query_heads / num_kv_heads).
    """

    q: Value
    layer: int
    num_query_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    out: Value
    window: int | None = None
    """Attend to the last `window` tokens, the token itself included; None: to all."""

    softcap: float | None = None
    """cap * tanh(score / cap) on the scaled scores."""


@dataclass(frozen=True, slots=True)
class Add:
    """out = a + b; out may be a or b."""

    a: Value
    b: Value
    out: Value


@dataclass(frozen=True, slots=True)
class GatedActivation:
    """out = activation(gate) * up."""

    kind: Literal["silu", "gelu_tanh", "relu"]
    gate: Value
    up: Value
    out: Value


@dataclass(frozen=True, slots=True)
class Softcap:
    """x = cap * tanh(x / cap), in place."""

    x: Value
    cap: float


@dataclass(frozen=True, slots=True)
class TakeRows:
    """out[r] = x[sampled_rows[r]]: from the rows of the step to those that are sampled."""

    x: Value
    out: Value


Op = (
    Embed
    | RmsNorm
    | Linear
    | Rope
    | KvWrite
    | Attention
    | Add
    | GatedActivation
    | Softcap
    | TakeRows
)
