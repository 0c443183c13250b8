"""Hugging Face names to canonical ones."""

import pytest

from kokuban.core.model_config import Architecture
from kokuban.weights.names import canonical_name

LAYER = "model.layers.12."


@pytest.mark.parametrize(
    ("architecture", "name", "canonical"),
    [
        ("llama", "model.embed_tokens.weight", "token_embd.weight"),
        ("llama", "lm_head.weight", "output.weight"),
        ("llama", "model.norm.weight", "output_norm.weight"),
        ("llama", LAYER + "self_attn.o_proj.weight", "blk.12.attn_output.weight"),
        ("llama", LAYER + "post_attention_layernorm.weight", "blk.12.ffn_norm.weight"),
        ("qwen2", LAYER + "self_attn.k_proj.bias", "blk.12.attn_k.bias"),
        ("qwen3", LAYER + "self_attn.q_norm.weight", "blk.12.attn_q_norm.weight"),
        ("phi3", LAYER + "self_attn.qkv_proj.weight", "blk.12.attn_qkv.weight"),
        ("phi3", LAYER + "mlp.gate_up_proj.weight", "blk.12.ffn_up.weight"),
        ("gemma3", LAYER + "post_attention_layernorm.weight", "blk.12.post_attention_norm.weight"),
        ("gemma3", LAYER + "pre_feedforward_layernorm.weight", "blk.12.ffn_norm.weight"),
        ("gemma3", LAYER + "post_feedforward_layernorm.weight", "blk.12.post_ffw_norm.weight"),
        ("gemma3", "language_model.model.norm.weight", "output_norm.weight"),
        ("gemma3", "model.language_model.norm.weight", "output_norm.weight"),
    ],
)
def test_the_tensors_of_each_family_have_a_canonical_name(
    architecture: Architecture, name: str, canonical: str
) -> None:
    assert canonical_name(name, architecture) == canonical


@pytest.mark.parametrize(
    "name",
    [
        LAYER + "self_attn.rotary_emb.inv_freq",
        "vision_tower.vision_model.embeddings.patch_embedding.weight",
        "model.vision_tower.x",
        "multi_modal_projector.mm_soft_emb_norm.weight",
    ],
)
def test_what_the_language_model_does_not_read_has_none(name: str) -> None:
    assert canonical_name(name, "gemma3") is None


@pytest.mark.parametrize("name", ["score.weight", LAYER + "mlp.experts.0.weight"])
def test_an_unknown_tensor_keeps_its_name_so_that_it_is_reported(name: str) -> None:
    assert canonical_name(name, "llama") == name
