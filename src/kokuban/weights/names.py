"""Hugging Face tensor names become the canonical ones, which are GGUF's."""

import re
from collections.abc import Mapping

from kokuban.core.model_config import Architecture

_TOP = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}

_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
"""Layer parts, without `.weight` or `.bias`. phi3 joins gate and up, gate first."""

_LAYER_GEMMA3 = _LAYER | {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}

_LAYER_NAMES: Mapping[Architecture, Mapping[str, str]] = {
    "llama": _LAYER,
    "qwen2": _LAYER,
    "qwen3": _LAYER,
    "phi3": _LAYER,
    "gemma3": _LAYER_GEMMA3,
}

_LAYER_PATTERN = re.compile(r"model\.layers\.(\d{1,4})\.(.+)\.(weight|bias)")
_LANGUAGE_PREFIXES = {
    "model.language_model.": "model.",
    "language_model.model.": "model.",
    "language_model.lm_head.": "lm_head.",
}
"""Where files of models that also see keep the language model."""

_NOT_LANGUAGE = re.compile(
    r"(model\.)?(vision_tower|multi_modal_projector)\.|.*rotary_emb\.inv_freq$"
)


def canonical_name(name: str, architecture: Architecture) -> str | None:
    """GGUF's name for a tensor of a safetensors file.

    Returns:
        None for tensors that the language model does not read (vision, computed tables). A name
        that the table does not know comes back unchanged, so that the check of left-over tensors
        reports it.
    """
    if _NOT_LANGUAGE.match(name):
        return None
    for prefix, replacement in _LANGUAGE_PREFIXES.items():
        if name.startswith(prefix):
            name = replacement + name.removeprefix(prefix)
    if name in _TOP:
        return _TOP[name]
    match = _LAYER_PATTERN.fullmatch(name)
    part = _LAYER_NAMES[architecture].get(match[2]) if match else None
    if match is None or part is None:
        return name
    return f"blk.{int(match[1])}.{part}.{match[3]}"
