"""The token that ends a message, for templates that write messages in different ways."""

from typing import Any

import pytest
from tests.fakes_text import CHATML, byte_tokenizer

from kokuban.text.breakpoints import Conversation, Place, common_length
from kokuban.text.chat import ChatTemplate

TOKENIZER = byte_tokenizer(add_bos=True)

# As gemma does: the system's words stand in the first turn of the user, and turns are trimmed.
FOLDED = (
    "{% set first = messages[0].content + '\n\n' if messages[0].role == 'system' else '' %}"
    "{% for m in (messages[1:] if first else messages) %}<{{ m.role }}>{{ first if loop.first }}"
    "{{ m.content | trim }}</>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)

# As qwen3 does: earlier thoughts are left out, the last ones are kept.
FORGETFUL = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content if loop.last else "
    "m.content.split('</think>')[-1] }}</>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)

# As qwen3.5 does: a conversation without a user's words is refused.
PICKY = (
    "{% if messages | selectattr('role', 'equalto', 'user') | list | length == 0 %}"
    "{{ raise_exception('no user') }}{% endif %}" + CHATML
)

# As llama 3 does: the tools stand in the first turn of the user.
TOOLS_INSIDE = (
    "{% for m in messages %}<{{ m.role }}>{% if m.role == 'user' and loop.index0 <= 1 and tools %}"
    "{{ tools | tojson }}{% endif %}{{ m.content }}</>{% endfor %}"
)

SYSTEM = {"role": "system", "content": "be"}
USER = {"role": "user", "content": "q"}
ANSWER = {"role": "assistant", "content": "<think>why</think>a"}
AGAIN = {"role": "user", "content": "r"}
TALK = [SYSTEM, USER, ANSWER, AGAIN]
TOOLS = [{"type": "function", "function": {"name": "f"}}]


def before(
    template: str,
    place: Place,
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]] | None = None,
    **options: Any,
) -> str:
    """The text of the tokens before a place."""
    chat = ChatTemplate(template, TOKENIZER)
    prompt = chat.encode_chat(messages, tools=tools, **options)
    conversation = Conversation(
        template=chat, messages=messages, tools=tools, kwargs={}, prompt=prompt
    )
    ids = prompt[: conversation.num_tokens_before(place)]
    return TOKENIZER.decode(ids, skip_special=False)


@pytest.mark.parametrize(
    ("template", "ends"),
    [
        (
            CHATML,
            [
                "be<|im_end|>\n",
                "q<|im_end|>\n",
                "<think>why</think>a<|im_end|>\n",
                "r<|im_end|>\n",
            ],
        ),
        (FOLDED, ["<user>be", "be\n\nq</>", "<think>why</think>a</>", "r</>"]),
        (FORGETFUL, ["be</>", "q</>", "<assistant>a", "r</>"]),
        (PICKY, ["be", "q<|im_end|>\n", "a<|im_end|>\n", "r<|im_end|>\n"]),
    ],
)
def test_every_message_ends_where_the_template_ends_it(template: str, ends: list[str]) -> None:
    found = [before(template, Place(index), TALK) for index in range(4)]

    assert [text[-len(end) :] for text, end in zip(found, ends, strict=True)] == ends
    assert all(text.startswith("<|bos|>") for text in found)
    assert [len(text) for text in found] == sorted({len(text) for text in found})


def test_a_part_ends_with_its_own_words() -> None:
    parts = ["one ", {"type": "text", "text": "two"}, {"type": "refusal", "refusal": "three"}]
    call = {"type": "function", "function": {"name": "f"}}
    message = {"role": "assistant", "content": parts, "tool_calls": [call]}
    template = CHATML.replace(
        "{{ message.content }}", "{{ message.content }}{{ message.tool_calls }}"
    )
    talk = [USER, message, AGAIN]

    ends = [before(template, Place(1, part), talk).partition("assistant\n")[2] for part in range(3)]

    assert ends[0] == "one "
    assert ends[1] == "one \ntwo"
    assert ends[2].startswith("one \ntwo\nthree[{")
    assert ends[2].endswith("<|im_end|>\n")
    assert before(template, Place(1), talk).endswith(ends[2])


@pytest.mark.parametrize(
    ("template", "end"),
    [
        ("{{ tools | tojson }}" + CHATML, "system\nbe<|im_end|>\n<|im_start|>user\n"),
        (TOOLS_INSIDE, '<user>[{"type": "function", "function": {"name": "f"}}]'),
    ],
)
def test_the_tools_end_where_the_conversation_begins(template: str, end: str) -> None:
    assert before(template, Place(-1), TALK, TOOLS).endswith(end)


@pytest.mark.parametrize(
    "options",
    [{}, {"add_generation_prompt": False, "continue_final_message": True}],
)
def test_the_last_message_ends_before_the_header_of_the_answer(options: dict[str, Any]) -> None:
    talk = [USER, {"role": "assistant", "content": "so"}]

    text = before(CHATML, Place(1), talk, **options)

    assert text.endswith("assistant\nso" if options else "assistant\nso<|im_end|>\n")


def test_special_tokens_in_the_words_of_a_user_do_not_move_the_place() -> None:
    talk = [{"role": "user", "content": "a<|im_end|>"}, {"role": "assistant", "content": "b"}, USER]

    assert before(CHATML, Place(0), talk).endswith("a<|im_end|><|im_end|>\n")
    assert before(CHATML, Place(1), talk).endswith("b<|im_end|>\n")


@pytest.mark.parametrize("template", ["{{ raise_exception('no') if messages | length < 4 }}x", "x"])
@pytest.mark.parametrize("place", [Place(-1), Place(0), Place(1)])
def test_where_nothing_can_be_compared_it_is_a_beginning_of_the_prompt(
    template: str, place: Place
) -> None:
    assert before(template, place, TALK, TOOLS) in ("", "<|bos|>", "<|bos|>x")


def test_common_length() -> None:
    assert [common_length(a, b) for a, b in (([], [1]), ([1, 2], [1, 3]), ([1, 2, 3], [1, 2]))] == [
        0, 1, 2,
    ]  # fmt: skip
