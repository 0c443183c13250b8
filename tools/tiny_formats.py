"""A ModelConfig and weights, written as a Hugging Face directory or as GGUF. For tests."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tools import byte_tokenizer
from tools.tiny_configs import Weights

from kokuban.core.model_config import ModelConfig, RopeConfig
from kokuban.program.rope import inverse_frequencies
from kokuban.weights.gguf_write import WriteValue, write_gguf
from kokuban.weights.mapped import WeightTensor
from kokuban.weights.quant_types import TensorType
from kokuban.weights.quantize import quantize

_HF_CLASSES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
}

_HF_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "post_ffw_norm": "post_feedforward_layernorm",
}


def write_hf(
    directory: Path,
    config: ModelConfig,
    weights: Weights,
    *,
    dtype: str = "f32",
    extra_pieces: tuple[str, ...] = (),
) -> Path:
    """Write config.json, model.safetensors (f32, f16 or bf16) and the byte tokenizer.

    Returns:
        The directory.
    """
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(hf_config(config), indent=1))
    byte_tokenizer.write_tokenizer(directory, extra_pieces)
    write_safetensors(directory / "model.safetensors", hf_weights(config, weights), dtype)
    return directory


def hf_config(cfg: ModelConfig) -> dict[str, Any]:
    """`config.json` as transformers 4 writes it."""
    model_type = _model_type(cfg)
    config: dict[str, Any] = {
        "architectures": [_HF_CLASSES[model_type]],
        "model_type": model_type,
        "num_hidden_layers": cfg.num_layers,
        "hidden_size": cfg.hidden_size,
        "intermediate_size": cfg.intermediate_size,
        "num_attention_heads": cfg.num_query_heads,
        "num_key_value_heads": cfg.num_kv_heads,
        "head_dim": cfg.head_dim,
        "vocab_size": cfg.vocab_size,
        "max_position_embeddings": cfg.max_positions,
        "rms_norm_eps": cfg.rms_norm_eps,
        "rope_theta": cfg.rope.theta,
        "rope_scaling": _hf_rope_scaling(cfg.rope),
        "hidden_act": {"gelu_tanh": "gelu_pytorch_tanh"}.get(cfg.activation, cfg.activation),
        "tie_word_embeddings": cfg.tied_embeddings,
        "attention_bias": False,
        "bos_token_id": byte_tokenizer.BOS_ID,
        "eos_token_id": byte_tokenizer.END_ID,
        "pad_token_id": None,
        "torch_dtype": "float32",
        "sliding_window": cfg.sliding_window,
    }
    if cfg.rope.scaling == "longrope":
        config["original_max_position_embeddings"] = cfg.rope.original_max_positions
    if cfg.rope.rotary_dim != cfg.head_dim:
        config["partial_rotary_factor"] = cfg.rope.rotary_dim / cfg.head_dim
    if model_type == "gemma3_text":
        config |= _gemma3_keys(cfg)
    return config


def _gemma3_keys(cfg: ModelConfig) -> dict[str, Any]:
    assert cfg.rope_local is not None
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": round(cfg.attention_scale**-2),
        "rope_local_base_freq": cfg.rope_local.theta,
        "layer_types": [
            "sliding_attention" if window else "full_attention" for window in cfg.window_layers
        ],
        "final_logit_softcapping": cfg.final_softcap,
        "attn_logit_softcapping": cfg.attention_softcap,
    }


def _model_type(cfg: ModelConfig) -> str:
    if cfg.architecture == "gemma3":
        return "gemma3_text"
    windowed_llama = cfg.architecture == "llama" and cfg.sliding_window is not None
    return "mistral" if windowed_llama else cfg.architecture


def _hf_rope_scaling(rope: RopeConfig) -> dict[str, Any] | None:
    scaling: dict[str, Any] = {"rope_type": rope.scaling, "factor": rope.factor}
    match rope.scaling:
        case "none":
            return None
        case "linear":
            return scaling
        case "llama3":
            scaling["low_freq_factor"] = rope.low_freq_factor
            scaling["high_freq_factor"] = rope.high_freq_factor
        case "longrope":
            factors = {"short_factor": rope.short_factors, "long_factor": rope.long_factors}
            return {"type": "longrope", **factors}
        case "yarn":
            scaling["beta_fast"], scaling["beta_slow"] = rope.beta_fast, rope.beta_slow
    return scaling | {"original_max_position_embeddings": rope.original_max_positions}


def hf_weights(config: ModelConfig, weights: Weights) -> Weights:
    """The same weights under transformers' names; norm offsets taken off again."""
    renamed = {}
    for name, array in weights.items():
        if name.endswith("norm.weight"):
            array = array - np.float32(config.norm_weight_offset)
        renamed[hf_name(name, config.architecture)] = array
    return renamed


def hf_name(name: str, architecture: str) -> str:
    """The name of a tensor in transformers."""
    match name.split("."):
        case ["token_embd", _]:
            return "model.embed_tokens.weight"
        case ["output", _]:
            return "lm_head.weight"
        case ["output_norm", _]:
            return "model.norm.weight"
        case ["blk", layer, "ffn_norm", _] if architecture == "gemma3":
            return f"model.layers.{layer}.pre_feedforward_layernorm.weight"
        case ["blk", layer, "ffn_up", _] if architecture == "phi3":
            return f"model.layers.{layer}.mlp.gate_up_proj.weight"
        case ["blk", layer, part, kind]:
            return f"model.layers.{layer}.{_HF_LAYER_NAMES[part]}.{kind}"
    raise AssertionError(name)


def write_safetensors(path: Path, tensors: Weights, dtype: str = "f32") -> Path:
    """Write one file. Source: the format's description in huggingface/safetensors."""
    stored = TensorType[dtype.upper()]
    assert not stored.quantized, f"safetensors hold f32, f16 or bf16, not {dtype}"
    encoded = {name: quantize(array, stored).tobytes() for name, array in tensors.items()}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, raw in encoded.items():
        header[name] = {
            "dtype": dtype.upper(),
            "shape": list(tensors[name].shape),
            "data_offsets": [offset, offset + len(raw)],
        }
        offset += len(raw)
    text = json.dumps(header).encode()
    text = text.ljust(-(-len(text) // 8) * 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.writelines(encoded.values())
    return path


def write_tiny_gguf(
    path: Path, config: ModelConfig, weights: Weights, *, quant: str = "f32"
) -> Path:
    """Write a GGUF file whose matrices are stored as `quant`, such as q4_k; vectors stay float32.

    Rows of q and k are interleaved for the llama architecture, as its readers expect. A matrix
    whose rows are no whole blocks of the type is stored as f32.
    """
    matrix_type = TensorType[quant.upper()]
    tensors = []
    for name, array in gguf_weights(config, weights).items():
        fits = array.ndim == 2 and array.shape[1] % matrix_type.block_elements == 0
        stored = matrix_type if fits else TensorType.F32
        tensors.append(WeightTensor(name, stored, array.shape, quantize(array, stored)))
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = gguf_metadata(config) | byte_tokenizer.gguf_metadata(config.vocab_size)
    write_gguf(path, metadata, tensors)
    return path


def gguf_weights(config: ModelConfig, weights: Weights) -> Weights:
    """Rows as the architecture's GGUF files have them, and the tables that stand for RoPE keys."""
    stored = dict(weights)
    if config.architecture == "llama":
        for name, array in weights.items():
            if name.endswith((".attn_q.weight", ".attn_k.weight")):
                stored[name] = interleave(array, config.head_dim)
    rope = config.rope
    if rope.scaling == "llama3":
        plain = RopeConfig(theta=rope.theta, rotary_dim=rope.rotary_dim)
        frequencies = inverse_frequencies(plain, 0)[0]
        scaled = inverse_frequencies(rope, 0)[0]
        ratios = np.array(frequencies) / np.array(scaled)
        stored["rope_freqs.weight"] = ratios.astype(np.float32)
    if rope.scaling == "longrope":
        stored["rope_factors_short.weight"] = np.array(rope.short_factors, np.float32)
        stored["rope_factors_long.weight"] = np.array(rope.long_factors, np.float32)
    return stored


def interleave(rows: NDArray[np.float32], head_dim: int) -> NDArray[np.float32]:
    """Rows of each head from (0, 1, 2 …) to (0, half, 1, half + 1 …). Heads: rows / head_dim."""
    halves = rows.reshape(-1, 2, head_dim // 2, rows.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)


def gguf_metadata(cfg: ModelConfig) -> dict[str, WriteValue]:
    """All keys but the tokenizer's."""
    arch = cfg.architecture
    keys: dict[str, WriteValue] = {
        "block_count": cfg.num_layers,
        "context_length": cfg.max_positions,
        "embedding_length": cfg.hidden_size,
        "feed_forward_length": cfg.intermediate_size,
        "attention.head_count": cfg.num_query_heads,
        "attention.head_count_kv": cfg.num_kv_heads,
        "attention.key_length": cfg.head_dim,
        "attention.value_length": cfg.head_dim,
        "attention.layer_norm_rms_epsilon": cfg.rms_norm_eps,
        "rope.dimension_count": cfg.rope.rotary_dim,
        "rope.freq_base": cfg.rope.theta,
        "vocab_size": cfg.vocab_size,
    }
    if cfg.sliding_window is not None:
        keys["attention.sliding_window"] = cfg.sliding_window
    if cfg.final_softcap is not None:
        keys["final_logit_softcapping"] = cfg.final_softcap
    if cfg.rope.scaling in ("linear", "yarn"):
        keys["rope.scaling.type"] = cfg.rope.scaling
        keys["rope.scaling.factor"] = cfg.rope.factor
    if cfg.rope.scaling in ("yarn", "longrope"):
        keys["rope.scaling.original_context_length"] = cfg.rope.original_max_positions
    if cfg.rope.scaling == "longrope":
        keys["rope.scaling.attn_factor"] = inverse_frequencies(cfg.rope, cfg.max_positions)[1]
    general: dict[str, WriteValue] = {
        "general.architecture": arch,
        "general.name": cfg.name,
        "general.alignment": 32,
    }
    return general | {f"{arch}.{key}": value for key, value in keys.items()}
