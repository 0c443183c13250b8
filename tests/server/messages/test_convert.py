"""An Anthropic conversation becomes the OpenAI one that says the same, in the same order."""

import json
from typing import Any

import pytest
from tests.server.asgi import Json

from kokuban.core.errors import RequestError
from kokuban.server.messages.convert import to_chat
from kokuban.server.messages.models import CountRequest, MessagesRequest
from kokuban.server.openai_models import ChatRequest, parse

EPHEMERAL: Json = {"type": "ephemeral"}
HOUR: Json = {"type": "ephemeral", "ttl": "1h"}
CALL: Json = {"type": "tool_use", "id": "t1", "name": "f", "input": {"b": 1, "a": [2**70]}}


def text(words: str, **fields: Any) -> Json:
    return {"type": "text", "text": words, **fields}


def user(*blocks: Json) -> Json:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: Json) -> Json:
    return {"role": "assistant", "content": list(blocks)}


def result(content: Any = "r", **fields: Any) -> Json:
    return {"type": "tool_result", "tool_use_id": "t1", "content": content, **fields}


def converted(
    *messages: Json, keep_billing_line: bool = False, late_system: bool = True, **fields: Any
) -> ChatRequest:
    given = {"model": "m", "messages": messages, "max_tokens": 9, **fields}
    raw = json.dumps(given).encode()
    return to_chat(
        parse(MessagesRequest, raw), keep_billing_line=keep_billing_line, late_system=late_system
    )


def plain(*messages: Json, **fields: Any) -> list[Json]:
    """Role and text of each message, and what else it has."""
    found = []
    for message in converted(*messages, **fields).plain_messages():
        content = message.pop("content")
        if isinstance(content, list):
            content = [part["text"] for part in content]
        found.append({message.pop("role"): content, **message})
    return found


def test_texts_and_roles_keep_their_order() -> None:
    found = plain(
        {"role": "user", "content": "a"},
        assistant(text("b"), text("c")),
        user(text("d"), text("e")),
        system=[text("s"), text("t")],
    )

    assert found == [
        {"system": ["s", "t"]},
        {"user": ["a"]},
        {"assistant": ["b", "c"]},
        {"user": ["d", "e"]},
    ]


def test_a_text_is_the_same_as_one_block_of_text() -> None:
    one = converted({"role": "user", "content": "a"}, system="s")
    other = converted(user(text("a")), system=[text("s")])

    assert one.plain_messages() == other.plain_messages()


def test_turns_of_one_role_that_follow_each_other_are_one() -> None:
    found = plain(user(text("a")), {"role": "user", "content": "b"}, assistant(text("c")),
                  assistant(CALL), user(result()), user(text("d")))  # fmt: skip

    assert [next(iter(message)) for message in found] == ["user", "assistant", "tool", "user"]
    assert found[0] == {"user": ["a", "b"]}
    assert found[1]["assistant"] == ["c"]
    assert found[1]["tool_calls"][0]["id"] == "t1"


def test_results_stand_where_they_stood_among_the_texts() -> None:
    other = {**result([text("x"), text("y")]), "tool_use_id": "t2"}

    found = plain(
        user(text("q")),
        assistant(text("w"), CALL, {**CALL, "id": "t2"}),
        user(result(), other, text("and"), text("then")),
    )

    assert found[2:] == [
        {"tool": ["r"], "tool_call_id": "t1"},
        {"tool": ["x", "y"], "tool_call_id": "t2"},
        {"user": ["and", "then"]},
    ]


def test_texts_in_front_of_a_result_stay_there() -> None:
    found = plain(user(text("q")), assistant(CALL), user(text("first"), result(), text("last")))

    assert [next(iter(message)) for message in found[2:]] == ["user", "tool", "user"]


def test_a_call_keeps_its_arguments_their_order_and_large_numbers() -> None:
    [_, said, _] = converted(user(text("q")), assistant(CALL), user(result())).plain_messages()

    [call] = said["tool_calls"]
    assert said["content"] == ""
    assert call["function"] == {"name": "f", "arguments": {"b": 1, "a": [2**70]}}
    assert list(call["function"]["arguments"]) == ["b", "a"]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, ["Error:", ""]),
        ("no such file", ["Error:", "no such file"]),
        ([text("a")], ["Error:", "a"]),
    ],
)
def test_a_failed_tool_says_so(content: Any, expected: list[str]) -> None:
    found = plain(user(text("q")), assistant(CALL), user(result(content, is_error=True)))

    assert found[-1]["tool"] == expected


@pytest.mark.parametrize("content", [None, "", []])
def test_a_tool_may_answer_nothing(content: Any) -> None:
    found = plain(user(text("q")), assistant(CALL), user(result(content)))

    assert "".join(found[-1]["tool"]) == ""


def test_thoughts_go_to_the_template_and_what_nobody_can_read_is_left_out() -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "x"}
    hidden = {"type": "redacted_thinking", "data": "…"}

    found = plain(user(text("q")), assistant(thought, hidden, text("a")), user(text("r")))

    assert found[1] == {"assistant": ["a"], "reasoning_content": "hm"}


def test_a_system_message_may_stand_in_the_middle() -> None:
    found = plain(user(text("q")), assistant(text("a")), {"role": "system", "content": "be brief"},
                  user(text("r")))  # fmt: skip

    assert found[2] == {"system": ["be brief"]}


def test_a_late_system_message_joins_the_users_turn_where_the_template_wants_it_in_front() -> None:
    turns = (user(text("q")), {"role": "system", "content": "be brief"}, assistant(text("a")))

    found = plain(*turns, user(text("r")), late_system=False, system="s")

    assert found == [{"system": ["s"]}, {"user": ["q", "be brief"]}, {"assistant": ["a"]},
                     {"user": ["r"]}]  # fmt: skip


@pytest.mark.parametrize("late_system", [False, True])
def test_system_messages_in_front_are_one_with_the_system_prompt(late_system: bool) -> None:
    first = {"role": "system", "content": "t"}

    assert plain(first, user(text("q")), system="s", late_system=late_system) == [
        {"system": ["s", "t"]},
        {"user": ["q"]},
    ]
    assert plain(first, user(text("q")), late_system=late_system)[0] == {"system": ["t"]}


@pytest.mark.parametrize("content", ["The answer is (", [text("The answer is (")]])
def test_an_assistants_turn_at_the_end_is_continued(content: Any) -> None:
    body = converted(user(text("q")), {"role": "assistant", "content": content})

    assert body.continue_final_message is True
    assert body.add_generation_prompt is False
    assert converted(user(text("q"))).continue_final_message is None


@pytest.mark.parametrize(
    ("thinking", "expected"),
    [
        (None, False),
        ({"type": "disabled"}, False),
        ({"type": "enabled", "budget_tokens": 2048}, True),
        ({"type": "adaptive"}, True),
    ],
)
def test_a_model_thinks_when_it_is_asked_to(thinking: Json | None, expected: bool) -> None:
    fields = {} if thinking is None else {"thinking": thinking}

    body = converted(user(text("q")), **fields)

    assert body.chat_template_kwargs == {"enable_thinking": expected}


def test_what_the_template_is_told_by_the_client_counts_more() -> None:
    body = converted(user(text("q")), chat_template_kwargs={"enable_thinking": True, "x": 1})

    assert body.chat_template_kwargs == {"enable_thinking": True, "x": 1}


def test_tools_become_functions() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    tools = [
        {"name": "f", "description": "d", "input_schema": schema},
        {"name": "g", "type": "custom", "input_schema": {}, "strict": True, "defer_loading": True},
    ]

    body = converted(user(text("q")), tools=tools)

    assert body.plain_tools() == [
        {"type": "function", "function": {"name": "f", "description": "d", "parameters": schema}},
        {"type": "function", "function": {"name": "g", "parameters": {}, "strict": True}},
    ]


TOOLS = [{"name": "f", "input_schema": {}}]


@pytest.mark.parametrize(
    ("choice", "expected", "parallel"),
    [
        ({"type": "auto"}, "auto", None),
        ({"type": "auto", "disable_parallel_tool_use": True}, "auto", False),
        ({"type": "none"}, "none", None),
        ({"type": "any"}, "required", None),
        ({"type": "tool", "name": "f"}, {"type": "function", "function": {"name": "f"}}, None),
    ],
)
def test_a_choice_of_tools(choice: Json, expected: Any, parallel: bool | None) -> None:
    body = converted(user(text("q")), tools=TOOLS, tool_choice=choice)

    assert (body.tool_choice, body.parallel_tool_calls) == (expected, parallel)


def test_marks_stay_on_what_has_them() -> None:
    body = converted(
        user(text("q", cache_control=EPHEMERAL)),
        assistant({**CALL, "cache_control": EPHEMERAL}),
        user(result(cache_control=HOUR)),
        system=[text("s", cache_control=HOUR)],
        tools=[{**TOOLS[0], "cache_control": EPHEMERAL}],
        cache_control=HOUR,
    )

    marks = [
        body.tools and body.tools[0].cache_control,
        *(getattr(part, "cache_control", None) for m in body.messages[:2] for part in m.content),  # type: ignore[union-attr]
        body.messages[2].tool_calls and body.messages[2].tool_calls[0].cache_control,
        body.messages[3].cache_control,
        body.cache_control,
    ]
    assert [mark and mark.ttl_s for mark in marks] == [300, 3600, 300, 300, 3600, 3600]
    assert "cache_control" not in str(body.plain_messages()) + str(body.plain_tools())


def test_what_the_sampler_is_told() -> None:
    body = converted(
        user(text("q")),
        stop_sequences=["x", "y"],
        temperature=0.5,
        top_p=0.25,
        top_k=7,
        stream=True,
        metadata={"user_id": "u"},
        seed=3,
        cache_salt="salt",
        service_tier="auto",
    )

    assert (body.max_tokens, body.stop, body.temperature) == (9, ["x", "y"], 0.5)
    assert (body.top_p, body.top_k, body.stream, body.user) == (0.25, 7, True, "u")
    assert (body.seed, body.cache_salt, body.n) == (3, "salt", None)


BILLING = "x-anthropic-billing-header: cc_version=2.1.37.fbe; cc_entrypoint=cli; cch=a1b2c;"


@pytest.mark.parametrize(
    ("system", "expected"),
    [
        (f"{BILLING}\nYou are", [{"system": ["You are"]}]),
        (f"{BILLING}\n\nYou are", [{"system": ["You are"]}]),
        (BILLING, []),
        ([text(BILLING), text("You are")], [{"system": ["You are"]}]),
        ([text(f"{BILLING}\nYou are"), text("x")], [{"system": ["You are", "x"]}]),
        ([text(BILLING)], []),
        (f"You are\n{BILLING}", [{"system": [f"You are\n{BILLING}"]}]),
        ([text("You are"), text(BILLING)], [{"system": ["You are", BILLING]}]),
    ],
)
def test_the_billing_line_is_left_out(system: Any, expected: list[Json]) -> None:
    assert plain(user(text("q")), system=system)[:-1] == expected


def test_the_billing_line_of_a_late_system_message_is_left_out_too() -> None:
    only = {"role": "system", "content": BILLING}
    more = {"role": "system", "content": [text(BILLING), text("be brief")]}

    assert plain(user(text("q")), only, assistant(text("a")), user(text("r")), more) == [
        {"user": ["q"]},
        {"assistant": ["a"]},
        {"user": ["r"]},
        {"system": ["be brief"]},
    ]


def test_a_user_may_talk_about_billing_lines() -> None:
    assert plain(user(text(BILLING))) == [{"user": [BILLING]}]


@pytest.mark.parametrize("system", [f"{BILLING}\nYou are", [text(BILLING), text("You are")]])
def test_the_billing_line_may_be_kept(system: Any) -> None:
    assert BILLING in str(plain(user(text("q")), system=system, keep_billing_line=True)[0])


IMAGE = {"type": "image", "source": {"type": "url", "url": "x"}}
SEARCH = {"type": "web_search_20250305", "name": "web_search"}


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"messages": [user(text("a"), IMAGE)]}, "messages[0].content[1]", "'image'"),
        ({"messages": [user({"type": "document"})]}, "messages[0].content[0]", "'document'"),
        ({"messages": [user({"type": "text"})]}, "messages[0].content[0].text", "missing"),
        ({"messages": [user(CALL)]}, "messages[0].content[0]", "'tool_use'"),
        ({"messages": [user(result([IMAGE]))]}, "messages[0].content[0].content[0]", "'image'"),
        (
            {"messages": [user({"type": "tool_result"})]},
            "messages[0].content[0].tool_use_id",
            "missing",
        ),
        (
            {"messages": [user(text("a")), assistant(text("b"), result())]},
            "messages[1].content[1]",
            "'tool_result'",
        ),
        (
            {"messages": [user(text("a")), assistant({"type": "tool_use", "id": "t"})]},
            "messages[1].content[0]",
            "an id and a name",
        ),
        (
            {"messages": [user(text("a")), assistant(CALL)]},
            "messages[1].content[0]",
            "send its tool_result",
        ),
        ({"messages": [user()]}, "messages[0].content", "is empty"),
        ({"messages": []}, "messages", "at least 1 item"),
        ({"messages": [{"role": "system", "content": BILLING}]}, "messages", "nothing"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role", "'user'"),
        ({"system": [IMAGE]}, "system[0]", "'image'"),
        ({"tools": [SEARCH]}, "tools[0].type", "'web_search_20250305'"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema", "missing"),
        ({"tools": TOOLS, "tool_choice": {"type": "tool"}}, "tool_choice.name", "missing"),
        ({"container": "c"}, "container", "runs no tools"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers", "runs no tools"),
        ({"max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
        ({"max_tokens": None}, "max_tokens", "valid integer"),
        ({"stop_sequences": [""]}, "stop_sequences[0]", "at least 1 character"),
        ({"temperature": "1"}, "temperature", "valid number"),
        ({"seed": "x"}, "seed", "valid integer"),
        ({"prompt_cache_key": ""}, "prompt_cache_key", "at least 1 character"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(fields: Json, param: str, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        converted(**{"messages": [user(text("q"))], **fields})

    assert caught.value.param == param
    assert message in str(caught.value)


def test_counting_needs_no_limit() -> None:
    body = parse(CountRequest, b'{"model": "m", "messages": [{"role": "user", "content": "a"}]}')

    chat = to_chat(body, keep_billing_line=False, late_system=False)
    assert chat.max_tokens is None
