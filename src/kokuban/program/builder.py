"""Collects the operations, values and weights of a Program while an architecture names them.

Buffers are few: asking for a value by a name that is taken gives the same value again, so that
all layers share one "qkv", one "gate_up" and so on. Weights are declared by their first use, with
the shape that the use implies; a second use must imply the same shape.

The one surprising choice: layers with unlike needs of KV are cut into groups of *equal* numbers
of layers (their greatest common divisor), because one pool of equal blocks serves all groups.
"""

import math
from collections.abc import Sequence

from kokuban.core.errors import ModelError
from kokuban.core.model_config import ModelConfig, RopeConfig
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
    Rows,
    Softcap,
    TakeRows,
    Value,
)
from kokuban.program.program import KvGroup, KvSpec, Program, WeightSpec

EMBEDDING = "token_embd.weight"
HEAD = "output.weight"
FINAL_NORM = "output_norm.weight"


class ProgramBuilder:
    """One Program in the making. Methods append an operation and return the value it wrote."""

    def __init__(self, config: ModelConfig) -> None:
        self._config = config
        self._ops: list[Op] = []
        self._values: dict[str, Value] = {}
        self._weights: dict[str, WeightSpec] = {}
        self._rope_tables: list[RopeConfig] = []

    def value(self, name: str, cols: int, rows: Rows = "T") -> Value:
        """The buffer of this name, made at the first call.

        Raises:
            ModelError: the name is taken by a buffer of another size.
        """
        value = self._values.setdefault(name, Value(name, rows, cols))
        if (value.rows, value.cols) != (rows, cols):
            raise ModelError(
                f"{self._config.name}: value {name!r} is {value.rows} × {value.cols} and cannot "
                f"also be {rows} × {cols}; give one of them another name"
            )
        return value

    def embed(self) -> Value:
        """The hidden state, "h": the embedding rows of the step's tokens, scaled."""
        cfg = self._config
        self._declare(EMBEDDING, (cfg.vocab_size, cfg.hidden_size), embedding=True)
        h = self.value("h", cfg.hidden_size)
        self._ops.append(Embed(EMBEDDING, h, cfg.embedding_scale))
        return h

    def norm(self, x: Value, weight: str, out: Value, dim: int | None = None) -> Value:
        """RMS norm over each run of `dim` columns; all columns unless it is given."""
        dim = x.cols if dim is None else dim
        self._declare(weight, (dim,))
        self._ops.append(RmsNorm(x, weight, self._config.rms_norm_eps, dim, out))
        return out

    def linear(
        self, x: Value, weights: Sequence[tuple[str, int]], out: Value, *, bias: bool = False
    ) -> Value:
        """One matrix product for several weights, given as (name, outputs), side by side in `out`.

        With `bias` each weight "a.weight" has a bias "a.bias".
        """
        names = tuple(name for name, _ in weights)
        for name, outputs in weights:
            self._declare(name, (outputs, x.cols), matmul=True)
        biases = tuple(name.removesuffix("weight") + "bias" for name in names) if bias else ()
        for name, (_, outputs) in zip(biases, weights, strict=False):
            self._declare(name, (outputs,))
        self._ops.append(Linear(x, names, out, biases))
        return out

    def rope(self, x: Value, num_heads: int, config: RopeConfig) -> None:
        """Rotate heads in place; equal configurations share a table."""
        if config not in self._rope_tables:
            self._rope_tables.append(config)
        table = self._rope_tables.index(config)
        self._ops.append(Rope(x, num_heads, self._config.head_dim, table))

    def attend(self, q: Value, k: Value, v: Value, layer: int, out: Value) -> Value:
        """Store K and V of this step, then attend to the cache."""
        cfg = self._config
        self._ops.append(KvWrite(k, v, layer))
        self._ops.append(
            Attention(
                q,
                layer,
                cfg.num_query_heads,
                cfg.num_kv_heads,
                cfg.head_dim,
                cfg.attention_scale,
                out,
                layer_window(cfg, layer),
                cfg.attention_softcap,
            )
        )
        return out

    def add(self, a: Value, b: Value, out: Value) -> Value:
        """out = a + b."""
        self._ops.append(Add(a, b, out))
        return out

    def gated(self, gate: Value, up: Value, out: Value) -> Value:
        """out = activation(gate) * up, with the model's activation."""
        self._ops.append(GatedActivation(self._config.activation, gate, up, out))
        return out

    def finish(self, h: Value) -> Program:
        """Add the final norm and the output head; the Program is complete."""
        cfg = self._config
        hidden = self.norm(h, FINAL_NORM, self.value("normed", cfg.hidden_size))
        body, self._ops = tuple(self._ops), []

        rows = self.value("sampled", cfg.hidden_size, "R")
        logits = self.value("logits", cfg.vocab_size, "R")
        self._ops.append(TakeRows(hidden, rows))
        self.linear(rows, [(EMBEDDING if cfg.tied_embeddings else HEAD, cfg.vocab_size)], logits)
        if cfg.final_softcap is not None:
            self._ops.append(Softcap(logits, cfg.final_softcap))
        return Program(
            name=cfg.name,
            body=body,
            head=tuple(self._ops),
            hidden=hidden,
            logits=logits,
            weights=self._weights,
            rope_tables=tuple(self._rope_tables),
            kv=KvSpec(kv_groups(cfg), cfg.num_kv_heads, cfg.head_dim),
            vocab_size=cfg.vocab_size,
        )

    def _declare(
        self, name: str, shape: tuple[int, ...], *, embedding: bool = False, matmul: bool = False
    ) -> None:
        before = self._weights.get(name)
        if before is not None and before.shape != shape:
            raise ModelError(
                f"{self._config.name}: weight {name!r} is used as {list(before.shape)} and as "
                f"{list(shape)}"
            )
        self._weights[name] = WeightSpec(
            shape,
            embedding=embedding or (before is not None and before.embedding),
            matmul=matmul or (before is not None and before.matmul),
        )


def layer_window(config: ModelConfig, layer: int) -> int | None:
    """Tokens that a layer looks back, its own included; None: all."""
    has_window = bool(config.window_layers) and config.window_layers[layer]
    return config.sliding_window if has_window else None


def kv_groups(config: ModelConfig) -> tuple[KvGroup, ...]:
    """Layers of equal need in groups of equal size, window groups first.

    Gemma 3 270M has 15 window layers and 3 full ones: six groups of 3, the last one full.
    """
    by_window: dict[int | None, list[int]] = {}
    for layer in range(config.num_layers):
        by_window.setdefault(layer_window(config, layer), []).append(layer)
    size = math.gcd(*map(len, by_window.values()))
    return tuple(
        KvGroup(tuple(layers[i : i + size]), window)
        for window, layers in sorted(by_window.items(), key=lambda item: item[0] is None)
        for i in range(0, len(layers), size)
    )
