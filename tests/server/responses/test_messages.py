"""From items to messages, and from tools of all kinds to functions."""

from typing import Any

import pytest

from kokuban.core.errors import RequestError
from kokuban.server.responses.items import check_items
from kokuban.server.responses.messages import seal, to_messages, unseal
from kokuban.server.responses.tools import Offered, chat_tool_choice, model_name, open_toolbox

Json = dict[str, Any]


def messages_of(*items: Json, instructions: str | None = None) -> list[Json]:
    return to_messages(instructions, check_items(items))


def user(text: str = "q") -> Json:
    return {"role": "user", "content": text}


def said(*texts: str) -> Json:
    parts = [{"type": "output_text", "text": text, "annotations": []} for text in texts]
    return {"type": "message", "role": "assistant", "id": "msg_1", "content": parts}


def thought(text: str) -> Json:
    return {
        "type": "reasoning",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": text}],
    }


def call(call_id: str = "c1", name: str = "f", **fields: Any) -> Json:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": "{}", **fields}


def result(call_id: str = "c1", output: Any = "ok") -> Json:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def chat_call(call_id: str = "c1", name: str = "f", arguments: str = "{}") -> Json:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def test_the_items_of_one_answer_become_one_message() -> None:
    messages = messages_of(
        user(), thought("hm"), said("so"), call(), call("c2"), result(), result("c2")
    )

    assert messages == [
        {"role": "user", "content": "q"},
        {
            "role": "assistant",
            "content": "so",
            "reasoning_content": "hm",
            "tool_calls": [chat_call(), chat_call("c2")],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "ok"},
        {"role": "tool", "tool_call_id": "c2", "content": "ok"},
    ]


def test_calls_alone_become_a_message_without_words() -> None:
    assert messages_of(user(), thought("hm"), call(), result())[1] == {
        "role": "assistant",
        "content": "",
        "reasoning_content": "hm",
        "tool_calls": [chat_call()],
    }


def test_two_answers_stay_two_messages() -> None:
    messages = messages_of(said("a"), said("b"), call(), thought("hm"), call("c2"))

    assert [message["content"] for message in messages] == ["a", "b", ""]
    assert [message.get("tool_calls") for message in messages] == [
        None,
        [chat_call()],
        [chat_call("c2")],
    ]


def test_thoughts_that_no_answer_follows_are_left_out() -> None:
    assert messages_of(thought("hm"), user(), said("so")) == [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "so"},
    ]


def test_a_call_that_was_cut_off_is_left_out() -> None:
    """Its arguments are no JSON, and nobody has run it."""
    messages = messages_of(user(), said("so"), call(status="incomplete", arguments='{"a'), user())

    assert messages[1] == {"role": "assistant", "content": "so"}


@pytest.mark.parametrize("arguments", ["{", "nothing", "[1]", '{"a": NaN}', ""])
def test_a_call_whose_arguments_are_no_object_is_told_without_them(arguments: str) -> None:
    """A model wrote them so, and the conversation that holds them must go on."""
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": arguments}
    result = {"type": "function_call_output", "call_id": "c", "output": "no JSON"}

    said, answered = messages_of(call, result)

    assert said["tool_calls"][0]["function"] == {"name": "f", "arguments": "{}"}
    assert answered["content"] == "no JSON"


def test_system_messages_at_the_head_become_one() -> None:
    head = [{"role": "system", "content": "b"}, {"role": "developer", "content": "c"}]

    messages = messages_of(*head, user(), {"role": "system", "content": "d"}, instructions="a")

    assert messages == [
        {"role": "system", "content": "a\n\nb\n\nc"},
        {"role": "user", "content": "q"},
        {"role": "system", "content": "d"},
    ]


def test_marks_and_boundaries_of_parts_are_kept() -> None:
    part = {"type": "input_text", "text": "a", "prompt_cache_breakpoint": {"mode": "explicit"}}
    other = {"type": "refusal", "refusal": "no"}

    assert messages_of({"role": "user", "content": [part, other]})[0]["content"] == [
        {"type": "text", "text": "a", "prompt_cache_breakpoint": {"mode": "explicit"}},
        {"type": "text", "text": "no"},
    ]
    assert messages_of({"role": "user", "content": []})[0]["content"] == ""


def test_a_result_in_parts_is_a_text() -> None:
    output = [{"type": "input_text", "text": "ok"}]

    assert messages_of(call(), result(output=output))[1]["content"] == "ok"


def test_a_custom_call_and_its_result_are_told_as_those_of_a_function() -> None:
    items = [
        {"type": "custom_tool_call", "call_id": "c1", "name": "patch", "input": 'a "b"\nü'},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "ok"},
    ]

    assert messages_of(*items) == [
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [chat_call(name="patch", arguments='{"input": "a \\"b\\"\\nü"}')],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "ok"},
    ]


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ({"content": [{"type": "reasoning_text", "text": "a"}], "encrypted_content": "x"}, "a"),
        ({"content": None, "encrypted_content": seal("ü\n")}, "ü\n"),
        ({"content": [], "encrypted_content": "gAAAAAB"}, None),
        ({"encrypted_content": "kokuban1.%%"}, None),
        ({"encrypted_content": "kokuban1./w=="}, None),
        ({"encrypted_content": "kokuban1.\u00e9"}, None),
        (
            {
                "summary": [
                    {"type": "summary_text", "text": "a"},
                    {"type": "summary_text", "text": "b"},
                ]
            },
            "a\nb",
        ),
        ({}, None),
    ],
)
def test_thoughts_are_read_in_the_fullest_form_that_there_is(
    item: Json, expected: str | None
) -> None:
    messages = messages_of({"type": "reasoning", **item}, said("so"))

    assert messages[0].get("reasoning_content") == expected


def test_half_a_surrogate_pair_in_a_thought_is_sealed_without_harm() -> None:
    assert unseal(seal("a\ud83d")) == "a?"


FUNCTION: Json = {"type": "function", "name": "f", "parameters": {"type": "object"}}


def test_tools_of_all_kinds_are_told_as_functions() -> None:
    box = open_toolbox(
        [
            FUNCTION,
            {"type": "custom", "name": "patch", "description": "Edits.", "format": {
                "type": "grammar", "syntax": "lark", "definition": "start: /.+/"}},
            {"type": "namespace", "name": "mcp__db", "description": "", "tools": [
                {"type": "function", "name": "query", "strict": True, "description": "Asks."},
                {"type": "custom", "name": "sql"}]},
            {"type": "web_search", "search_content_types": ["text"]},
            {"type": "local_shell"},
        ]
    )  # fmt: skip

    assert [tool["function"]["name"] for tool in box.functions] == [
        "f",
        "patch",
        "mcp__db__query",
        "mcp__db__sql",
    ]
    assert box.functions[0]["function"] == {"name": "f", "parameters": {"type": "object"}}
    assert box.functions[1]["function"]["description"] == (
        "Edits.\n\nThe input follows this lark grammar:\nstart: /.+/"
    )
    assert box.functions[2]["function"] == {
        "name": "mcp__db__query",
        "description": "Asks.",
        "strict": True,
    }
    assert box.offered["mcp__db__sql"] == Offered("sql", "mcp__db", is_custom=True)
    assert [tool["type"] for tool in box.shown] == ["function", "custom", "namespace"]
    assert box.shown[0] == {**FUNCTION, "strict": None}
    assert box.left_out == ["web_search", "local_shell"]


def test_a_call_in_a_namespace_is_told_by_the_name_that_the_model_knows() -> None:
    messages = messages_of(call(name="query", namespace="mcp__db"))

    assert messages[0]["tool_calls"][0]["function"]["name"] == "mcp__db__query"
    assert model_name("query", "mcp__") == "mcp__query"
    assert model_name("query", None) == "query"


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, None),
        ("auto", "auto"),
        ("none", "none"),
        ("required", "required"),
        ({"type": "function", "name": "f"}, {"type": "function", "function": {"name": "f"}}),
        ({"type": "custom", "name": "c"}, {"type": "function", "function": {"name": "c"}}),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "function", "name": "f"}],
            },
            {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "required",
                    "tools": [{"type": "function", "function": {"name": "f"}}],
                },
            },
        ),
    ],
)
def test_a_choice_of_tools_is_said_as_in_a_chat(choice: Any, expected: Any) -> None:
    box = open_toolbox([FUNCTION, {"type": "custom", "name": "c"}])

    assert chat_tool_choice(choice, box) == expected


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ({"type": "web_search"}, "of type 'web_search'"),
        ({"type": "function", "name": "g"}, "'g', which tools does not offer"),
        ({"type": "function", "name": "f", "namespace": 5}, "'5__f', which tools does not offer"),
        ({"type": "allowed_tools", "mode": "auto", "tools": [5]}, "of type 'None'"),
    ],
)
def test_a_choice_of_what_is_not_offered_is_refused(choice: Any, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        chat_tool_choice(choice, open_toolbox([FUNCTION]))


def test_no_choice_is_made_among_no_tools() -> None:
    box = open_toolbox([{"type": "web_search"}])

    assert chat_tool_choice("auto", box) is None
    with pytest.raises(RequestError, match="offers no function"):
        chat_tool_choice("required", box)
