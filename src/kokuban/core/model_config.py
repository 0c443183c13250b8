"""The numbers of one model: `weights` reads them from its file, `models` makes a Program."""

from dataclasses import dataclass
from typing import Literal

Architecture = Literal["llama", "qwen2", "qwen3", "phi3", "gemma3"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary position embedding: angle of pair i at position p is p * inv_freq[i]."""

    theta: float = 10_000.0
    rotary_dim: int
    """Leading dimensions of a head that rotate; head_dim unless the model says less."""

    interleaved: bool = False
    """Pairs are (0, 1), (2, 3) … as in GGUF files of llama; else (i, i + rotary_dim / 2)."""

    scaling: Literal["none", "linear", "llama3", "yarn", "longrope"] = "none"
    factor: float = 1.0
    original_max_positions: int = 0
    """Context the model was trained on before scaling (llama3, yarn, longrope)."""

    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    """yarn, longrope: multiplies cos and sin; None: the formula's own."""

    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()
    """longrope: divisors of each inverse frequency, below and above original_max_positions."""

    freq_factors: tuple[float, ...] = ()
    """Divisors of each inverse frequency that a GGUF file states itself (rope_freqs.weight)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Everything that an architecture function needs; sizes in elements."""

    architecture: Architecture
    name: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_query_heads: int
    num_kv_heads: int
    head_dim: int
    """Its own key, not hidden_size / num_query_heads: the two differ in qwen3 and gemma3."""

    vocab_size: int
    """Rows of the embedding; may be above the tokenizer's size (padding rows)."""

    max_positions: int
    rms_norm_eps: float
    rope: RopeConfig
    rope_local: RopeConfig | None = None
    """For window layers where they rotate otherwise (gemma3)."""

    sliding_window: int | None = None
    """Tokens that a window layer attends to, its own included."""

    window_layers: tuple[bool, ...] = ()
    """For each layer whether it has the window; empty: none has."""

    tied_embeddings: bool = False
    """The output head is the embedding matrix."""

    qkv_bias: bool = False
    qk_norm: bool = False
    attention_scale: float
    """Multiplies q·k; usually head_dim ** -0.5."""

    embedding_scale: float = 1.0
    attention_softcap: float | None = None
    final_softcap: float | None = None
    activation: Literal["silu", "gelu_tanh", "relu"] = "silu"
    norm_weight_offset: float = 0.0
    """Added to every norm weight that is read: 1 for gemma in safetensors (w stands for 1 + w)."""
