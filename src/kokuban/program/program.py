"""A model as a list of operations: run by the backends, priced by `plan`, timed by `observe`."""

from collections.abc import Mapping
from dataclasses import dataclass

from kokuban.core.config import KvDtype, kv_head_bytes
from kokuban.core.model_config import RopeConfig
from kokuban.program.ops import Op, Value


@dataclass(frozen=True, slots=True)
class WeightSpec:
    """A tensor that the Program reads."""

    shape: tuple[int, ...]
    """[n, k] for matrices, [n] for norms and biases."""

    embedding: bool = False
    """Read row by row (Embed), from the mapped file."""

    matmul: bool = False
    """Read by Linear, packed for the kernels."""


@dataclass(frozen=True, slots=True)
class KvGroup:
    """Layers with the same need of KV, which share one block table."""

    layers: tuple[int, ...]
    window: int | None = None
    """Tokens that these layers look back, the token itself included; None: all."""


@dataclass(frozen=True, slots=True)
class KvSpec:
    """What one token leaves in the KV cache."""

    groups: tuple[KvGroup, ...]
    """All hold the same number of layers, so that one pool of equal blocks serves them."""

    num_kv_heads: int
    head_dim: int

    @property
    def num_layers(self) -> int:
        return sum(len(group.layers) for group in self.groups)

    def bytes_per_token(self, dtype: KvDtype) -> int:
        """K and V of one token in every layer, scales included, in bytes."""
        return self.num_layers * 2 * self.num_kv_heads * kv_head_bytes(dtype, self.head_dim)


@dataclass(frozen=True, slots=True)
class Program:
    """The whole of one model. `head` begins with the sampled rows of what `body` leaves."""

    name: str
    body: tuple[Op, ...]
    head: tuple[Op, ...]
    hidden: Value
    """[T, E] or, where the head computes it, [R, E]: what the output matrix is multiplied by."""

    logits: Value
    """[R, V] float32."""

    weights: Mapping[str, WeightSpec]
    rope_tables: tuple[RopeConfig, ...]
    kv: KvSpec
    vocab_size: int
