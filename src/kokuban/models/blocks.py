"""Pieces that several architectures share: the two halves of a decoder layer, without the sums."""

from kokuban.core.model_config import ModelConfig
from kokuban.program.builder import ProgramBuilder, layer_window
from kokuban.program.ops import Value


def attention(
    b: ProgramBuilder, cfg: ModelConfig, layer: int, x: Value, *, joined: bool = False
) -> Value:
    """Project to q, k, v; norm and rotate heads as the config says; attend; project back.

    With `joined` the file has one attn_qkv matrix (q rows, then k, then v) instead of three.

    Returns:
        "proj", [T, E]; the caller adds it to the hidden state.
    """
    blk = f"blk.{layer}"
    q_cols, kv_cols = cfg.num_query_heads * cfg.head_dim, cfg.num_kv_heads * cfg.head_dim
    qkv = b.value("qkv", q_cols + 2 * kv_cols)
    if joined:
        weights = [(f"{blk}.attn_qkv.weight", qkv.cols)]
    else:
        sizes = zip("qkv", (q_cols, kv_cols, kv_cols), strict=True)
        weights = [(f"{blk}.attn_{which}.weight", cols) for which, cols in sizes]
    b.linear(x, weights, qkv, bias=cfg.qkv_bias)

    q = qkv.columns("q", 0, q_cols)
    k = qkv.columns("k", q_cols, kv_cols)
    v = qkv.columns("v", q_cols + kv_cols, kv_cols)
    if cfg.qk_norm:
        b.norm(q, f"{blk}.attn_q_norm.weight", q, cfg.head_dim)
        b.norm(k, f"{blk}.attn_k_norm.weight", k, cfg.head_dim)
    windowed = layer_window(cfg, layer) is not None
    rope = cfg.rope_local if windowed and cfg.rope_local is not None else cfg.rope
    # q and k lie side by side, so that one operation rotates both.
    b.rope(qkv.columns("qk", 0, q_cols + kv_cols), cfg.num_query_heads + cfg.num_kv_heads, rope)
    out = b.attend(q, k, v, layer, b.value("attn_out", q_cols))
    proj = b.value("proj", cfg.hidden_size)
    return b.linear(out, [(f"{blk}.attn_output.weight", cfg.hidden_size)], proj)


def mlp(
    b: ProgramBuilder, cfg: ModelConfig, layer: int, x: Value, *, joined: bool = False
) -> Value:
    """The gated feed-forward half of a layer.

    With `joined` the file has one ffn_up matrix (gate rows, then up rows) instead of two.

    Returns:
        "proj", [T, E]; the caller adds it to the hidden state.
    """
    blk, size = f"blk.{layer}", cfg.intermediate_size
    gate_up = b.value("gate_up", 2 * size)
    if joined:
        weights = [(f"{blk}.ffn_up.weight", 2 * size)]
    else:
        weights = [(f"{blk}.ffn_gate.weight", size), (f"{blk}.ffn_up.weight", size)]
    b.linear(x, weights, gate_up)
    gate, up = gate_up.columns("gate", 0, size), gate_up.columns("up", size, size)
    act = b.gated(gate, up, b.value("act", size))
    proj = b.value("proj", cfg.hidden_size)
    return b.linear(act, [(f"{blk}.ffn_down.weight", cfg.hidden_size)], proj)


def pre_norm_decoder(b: ProgramBuilder, cfg: ModelConfig, *, joined: bool = False) -> Value:
    """Embedding and all layers of the llama family: norm, attention, sum, norm, MLP, sum.

    Returns:
        "h", [T, E]: the hidden state before the final norm.
    """
    h = b.embed()
    normed = b.value("normed", cfg.hidden_size)
    for layer in range(cfg.num_layers):
        x = b.norm(h, f"blk.{layer}.attn_norm.weight", normed)
        b.add(h, attention(b, cfg, layer, x, joined=joined), h)
        x = b.norm(h, f"blk.{layer}.ffn_norm.weight", normed)
        b.add(h, mlp(b, cfg, layer, x, joined=joined), h)
    return h
