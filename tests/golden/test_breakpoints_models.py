"""Where messages end in the prompts of real templates and tokenizers, to the token."""

import pytest

from kokuban.text.breakpoints import Conversation, Place
from kokuban.text.chat import ChatTemplate
from kokuban.text.load import load_text
from kokuban.weights.pull import models_dir
from kokuban.weights.source import open_source

pytestmark = pytest.mark.models

# The system's words stand in the first turn of the user, and turns are trimmed.
GEMMA = (
    "{{ bos_token }}{% set first = messages[0].content + '\n\n' %}{% for m in messages[1:] %}"
    "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ first if loop.first }}"
    "{{ m.content | trim }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)

TALK = [
    {"role": "system", "content": "You are a helper. 12"},
    {"role": "user", "content": ["Look at this: hello", "and that 42\n"]},
    {"role": "assistant", "content": "Fine.<|im_end|>"},
    {"role": "user", "content": "Go on"},
]
PLACES = [Place(0), Place(1, 0), Place(1), Place(2), Place(3)]
CHATML_ENDS = [
    "You are a helper. 12<|im_end|>\n", "hello", "42\n<|im_end|>\n", "<|im_end|><|im_end|>\n",
    "Go on<|im_end|>\n",
]  # fmt: skip
GEMMA_ENDS = [
    "<start_of_turn>user\nYou are a helper. 12", "hello", "and that 42<end_of_turn>\n",
    "Fine.<|im_end|><end_of_turn>\n", "Go on<end_of_turn>\n",
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "ends"), [("smollm2", CHATML_ENDS), ("qwen", CHATML_ENDS), ("gemma", GEMMA_ENDS)]
)
def test_marks_lie_behind_the_last_token_of_what_they_mark(name: str, ends: list[str]) -> None:
    """The gemma that is tested is no chat model: it gets a template in the manner of gemma's."""
    path = models_dir() / f"{name}.gguf"
    if not path.exists():
        pytest.skip(f"{path.name} is absent; run tools/fetch_test_models.py")
    text = load_text(open_source(path).tokenizer_source())
    template = ChatTemplate(GEMMA, text.tokenizer) if name == "gemma" else text.chat_template
    prompt = template.encode_chat(TALK)
    conversation = Conversation(
        template=template, messages=TALK, tools=None, kwargs={}, prompt=prompt
    )

    lengths = [conversation.num_tokens_before(place) for place in PLACES]

    texts = [text.tokenizer.decode(prompt[:length], skip_special=False) for length in lengths]
    assert [each[-len(end) :] for each, end in zip(texts, ends, strict=True)] == ends
    assert lengths == sorted(set(lengths))
    # Nothing of what follows is in it: the next token begins another turn, part or header.
    rests = [text.tokenizer.decode(prompt[length:], skip_special=False) for length in lengths]
    assert rests[1].startswith("\nand that 42")
    assert rests[2].startswith("<")
    assert rests[4] in ("<|im_start|>assistant\n", "<start_of_turn>model\n")
