"""Conversations with tools, for templates that know nothing of them."""

from typing import Any

import pytest
from tests.fakes_text import CHATML, byte_tokenizer

from kokuban.core.errors import TemplateError
from kokuban.text.chat import ChatTemplate

TOKENIZER = byte_tokenizer()
EACH = "{% for m in messages %}"
TOOL = {"type": "function", "function": {"name": "f", "description": "Finds.", "parameters": {}}}
USER = {"role": "user", "content": "q"}
LISTED = '{"name": "f", "description": "Finds.", "parameters": {}}'


def call(*ids: str, content: str | None = None) -> dict[str, Any]:
    calls = [
        {"id": i, "type": "function", "function": {"name": "f", "arguments": f'{{"n": "{i}"}}'}}
        for i in ids
    ]
    return {"role": "assistant", "content": content, "tool_calls": calls}


def result(of: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": of, "content": f"result of {of}"}


def render(template: str, *messages: dict[str, Any], tools: bool = True) -> str:
    chat = ChatTemplate(template, TOKENIZER)
    return chat.render_chat(list(messages), tools=[TOOL] if tools else None)


def test_tools_are_described_at_the_end_of_the_system_message() -> None:
    text = render(CHATML, {"role": "system", "content": "Be kind."}, USER)

    system, user, _ = text.split("<|im_end|>\n")
    assert system.startswith("<|im_start|>system\nBe kind.\n\nYou can use tools.")
    assert f"<tools>\n{LISTED}\n</tools>\n" in system
    assert '<tool_call>\n{"name": "NAME", "arguments": {"ARGUMENT": "VALUE"}}\n' in system
    assert user == "<|im_start|>user\nq"


def test_a_system_message_is_made_where_there_is_none() -> None:
    assert render(CHATML, USER).startswith("<|im_start|>system\nYou can use tools.")


@pytest.mark.parametrize(
    "refusal",
    [
        "{% if m.role == 'system' %}{{ raise_exception('no system role') }}{% endif %}",
        "{% if m.role == 'system' %}{% continue %}{% endif %}",
    ],
)
def test_without_a_system_role_the_user_tells_of_the_tools(refusal: str) -> None:
    template = EACH + refusal + "[{{ m.role }}]{{ m.content }}{% endfor %}"

    text = render(template, USER, {"role": "assistant", "content": "a"}, USER)

    assert text.startswith("[user]You can use tools.")
    assert text.endswith("answer in words.\n\nq[assistant]a[user]q")


def test_calls_and_results_become_words() -> None:
    template = EACH + "[{{ m.role }}]{{ m.content }}{% endfor %}"

    text = render(
        template.replace("{{ m.content }}", "{{ m.content if m.role != 'tool' }}"),
        USER,
        call("a", "b", content="Well."),
        result("a"),
        result("b"),
        {"role": "user", "content": "Go on."},
        tools=False,
    )

    assert text == (
        '[user]q[assistant]Well.\n<tool_call>\n{"name": "f", "arguments": {"n": "a"}}\n'
        '</tool_call>\n<tool_call>\n{"name": "f", "arguments": {"n": "b"}}\n</tool_call>'
        "[user]<tool_response>\nresult of a\n</tool_response>\n"
        "<tool_response>\nresult of b\n</tool_response>\nGo on."
    )


def test_calls_are_written_as_the_family_writes_them() -> None:
    template = "{# SmolLM #}" + CHATML

    text = render(template, USER, call("a"), result("a"), tools=False)

    assert '<tool_call>[{"name": "f", "arguments": {"n": "a"}}]</tool_call><|im_end|>' in text
    assert text.endswith(
        "<|im_start|>user\n<tool_response>\nresult of a\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


ONE_CALL = (
    EACH + "[{{ m.role }}]{{ m.content }}{% for c in m.tool_calls or [] %}{% if loop.length > 1 %}"
    "{{ raise_exception('one call at once') }}{% endif %}{{ c.function.arguments | tojson }}"
    "{% endfor %}{% endfor %}"
)


def test_several_calls_are_told_one_by_one_where_a_message_may_have_one() -> None:
    text = render(
        ONE_CALL, USER, call("a", "b", "c", content="Well."), result("b"), result("a"), USER
    )

    assert text.partition("[assistant]")[2] == (
        'Well.{"n": "a"}[tool]result of a[assistant]{"n": "b"}[tool]result of b'
        '[assistant]{"n": "c"}[user]q'
    )


def test_a_template_that_knows_tools_is_left_alone() -> None:
    template = "{{ tools | tojson }}" + EACH + "{{ m | tojson }}{% endfor %}"
    messages = [USER, call("a"), result("a")]

    text = render(template, *messages)

    assert "You can use" not in text
    assert '"tool_calls": [{"type": "function", "id": "a"' in text
    assert '{"role": "tool", "tool_call_id": "a", "content": "result of a", "name": "f"}' in text


def test_messages_without_tools_are_left_alone() -> None:
    """A template need not even be asked."""
    template = EACH + "{{ m.content }}{% if m.tool_calls %}{{ 1 / 0 }}{% endif %}{% endfor %}"

    assert render(template, USER, tools=False) == "q"


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_thoughts_reach_the_template_under_one_name(field: str) -> None:
    template = EACH + "{{ m.reasoning_content }}|{{ m.reasoning }}|{{ m.content }};{% endfor %}"
    message = {"role": "assistant", "content": None, field: "hm"}

    assert render(template, USER, message, tools=False) == "||q;hm||;"


def test_a_message_without_anything_is_refused() -> None:
    with pytest.raises(Exception, match="only an assistant message with tool_calls or reasoning"):
        render(CHATML, {"role": "assistant", "content": None})


def test_a_failing_template_is_still_the_clients_fault() -> None:
    with pytest.raises(TemplateError, match="no tools here"):
        render("{{ raise_exception('no tools here') }}", USER)


def test_what_a_template_asks_of_every_tool_is_filled_in() -> None:
    template = "{% for t in tools %}{{ 'it ' + t.function.description }};{% endfor %}"
    named = "{% for t in tools %}{{ t.function.name }}" + template.removeprefix(
        "{% for t in tools %}"
    )
    chat = ChatTemplate(named, TOKENIZER)
    tools = [{"type": "function", "function": {"name": "g", "description": None}}, TOOL]

    assert chat.render_chat([USER], tools=tools) == "git ;fit Finds.;"
