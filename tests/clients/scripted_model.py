"""A real model on disk that says what a script says: it calls a tool, and once the result is there
it answers.

Llama's architecture with every weight of attention and MLP at zero, the identity as embedding, and
an output head with a single 1 in each column: the next token depends on the last one alone. The
chat template ends a prompt with one of two cue tokens, and each cue is followed by its text, of
which the sentence, or what stands between the marks of the call, is one token. So any client can be
led through a tool loop by a server that computes for real.
"""

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tests.fakes_text import (
    FIRST_PIECE,
    IM_END,
    TOOL_CALL,
    TOOL_CALL_END,
    byte_tokenizer_json,
)
from tests.unit.weights.small_models import safetensors_bytes

HIDDEN = VOCABULARY = 512
CONTEXT = 131_072
CUE_CALL, CUE_ANSWER, CALL, ANSWER = range(FIRST_PIECE, FIRST_PIECE + 4)

TEMPLATE = """\
{%- if tools %}<|im_start|>system
Answer with <tool_call>{"name": ..., "arguments": ...}</tool_call> to call one of <tools>
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}
</tools><|im_end|>
{% endif %}
{%- set state = namespace(results=0) %}
{%- for message in messages %}
{%- if message.role == 'tool' or 'Observation:' in message.content %}
{%- set state.results = state.results + 1 %}
{%- endif %}<|im_start|>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if tools and not state.results %}[call]{% else %}[answer]{% endif %}{% endif %}"""


def call_text(name: str, arguments: object) -> str:
    """What stands between the marks of a call, as Hermes and Qwen write it."""
    return "\n" + json.dumps({"name": name, "arguments": arguments}) + "\n"


def write_model(directory: Path, call: str, answer: str) -> None:
    """Write config, weights, tokenizer and template.

    Args:
        directory: made if it is not there.
        call: what the model calls where tools are offered and no result is there yet.
        answer: what it says otherwise.
    """
    directory.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "eos_token_id": IM_END,
    }
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [IM_END]}))
    (directory / "tokenizer.json").write_text(
        byte_tokenizer_json(["[call]", "[answer]", call, answer])
    )
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "<|im_end|>", "chat_template": TEMPLATE})
    )
    (directory / "model.safetensors").write_bytes(safetensors_bytes(_weights()))


def _weights() -> dict[str, npt.NDArray[np.float32]]:
    head = np.zeros((VOCABULARY, HIDDEN), np.float32)
    follows = {CUE_CALL: TOOL_CALL, TOOL_CALL: CALL, CALL: TOOL_CALL_END, CUE_ANSWER: ANSWER}
    for token in range(VOCABULARY):
        head[follows.get(token, IM_END), token] = 1
    layer = "model.layers.0"
    zeros = {
        f"{layer}.self_attn.q_proj.weight": (32, HIDDEN),
        f"{layer}.self_attn.k_proj.weight": (32, HIDDEN),
        f"{layer}.self_attn.v_proj.weight": (32, HIDDEN),
        f"{layer}.self_attn.o_proj.weight": (HIDDEN, 32),
        f"{layer}.mlp.gate_proj.weight": (32, HIDDEN),
        f"{layer}.mlp.up_proj.weight": (32, HIDDEN),
        f"{layer}.mlp.down_proj.weight": (HIDDEN, 32),
    }
    return {
        "model.embed_tokens.weight": np.eye(VOCABULARY, HIDDEN, dtype=np.float32),
        "lm_head.weight": head,
        "model.norm.weight": np.ones(HIDDEN, np.float32),
        f"{layer}.input_layernorm.weight": np.ones(HIDDEN, np.float32),
        f"{layer}.post_attention_layernorm.weight": np.ones(HIDDEN, np.float32),
        **{name: np.zeros(shape, np.float32) for name, shape in zeros.items()},
    }
