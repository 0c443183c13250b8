"""An answer that is sent back renders as the model wrote it, so that its KV is found again."""

import json
from typing import Any

import pytest
from tests.fakes_text import CHATML, byte_tokenizer
from tests.shared_data import shared_data

from kokuban.text.answer_parser import AnswerParser
from kokuban.text.chat import ChatTemplate
from kokuban.text.parts import ReasoningPart, TextPart, whole_calls
from kokuban.text.reasoning import Thoughts, thoughts_after

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
USER = {"role": "user", "content": "q"}
ONE, TWO = ({"name": "f", "arguments": {"a": i, "b": "é\n"}} for i in (1, 2))


def template_of(name: str) -> ChatTemplate:
    if name == "ChatML":
        return ChatTemplate(CHATML, byte_tokenizer())
    goldens = json.loads(shared_data("templates/chat_template_goldens.json").read_text("utf-8"))
    return ChatTemplate(goldens["c"][name]["chat_template"], byte_tokenizer())


def message_of(template: ChatTemplate, prompt: str, answer: str) -> dict[str, Any]:
    """What a client sends back of an answer."""
    parser = AnswerParser(
        template.style.calls,
        tools={"f": ()},
        reasons=template.style.reasons,
        is_thinking=thoughts_after(prompt) is Thoughts.GO_ON,
    )
    parts = [*parser.feed(answer), *parser.finish()]
    calls = [
        {"id": f"c{number}", "type": "function", "function": call._asdict()}
        for number, call in enumerate(whole_calls(parts))
    ]
    thoughts = "".join(part.text for part in parts if isinstance(part, ReasoningPart))
    return {
        "role": "assistant",
        "content": "".join(part.text for part in parts if isinstance(part, TextPart)) or None,
        **({"reasoning_content": thoughts} if thoughts else {}),
        "tool_calls": calls,
    }


THOUGHT = "<think>\nHm.\n</think>\n\n"
QWEN3, LLAMA = "Qwen/Qwen3-0.6B", "meta-llama/Llama-3.1-8B-Instruct"
CASES = [
    (name, before, calls)
    for name in (
        "ChatML",
        "Qwen/Qwen2.5-7B-Instruct",
        QWEN3,
        "HuggingFaceTB/SmolLM3-3B",
    )
    for before in ("", "Let me see.\n")
    for calls in ((ONE,), (ONE, TWO))
]


@pytest.mark.parametrize(
    ("name", "before", "calls"),
    [*CASES, (QWEN3, THOUGHT, (ONE,)), (QWEN3, f"{THOUGHT}So.\n", (ONE, TWO)), (LLAMA, "", (ONE,))],
)
def test_the_next_prompt_begins_with_the_last_one_and_its_answer(
    name: str, before: str, calls: tuple[dict[str, Any], ...]
) -> None:
    template = template_of(name)
    prompt = template.render_chat([USER], tools=TOOLS)
    answer = before + template.style.calls.write(calls)

    message = message_of(template, prompt, answer)
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": "ok"}
        for call in message["tool_calls"]
    ]
    following = template.render_chat([USER, message, *results], tools=TOOLS)

    assert len(message["tool_calls"]) == len(calls)
    assert following.startswith(prompt + answer)


def test_a_template_that_wants_more_than_clients_send_gets_it() -> None:
    """Hermes 2 Pro fails on tools without a description and on results without a name."""
    template = template_of("NousResearch/Hermes-2-Pro-Llama-3-8B (JSON Schema)")
    message = message_of(template, "", template.style.calls.write([ONE]))
    result = {"role": "tool", "tool_call_id": "c0", "content": "ok"}

    text = template.render_chat([USER, message, result], tools=TOOLS)

    assert '{"name": "f", "content": "ok"}' in text
