"""Tells a model about tools where its chat template cannot: in our words, as ordinary messages.

What a template leaves out is found by trying, once for each template (`Abilities`):

    the tools             described at the end of the system message, or, where the template has no
                          system message, in front of the user's first words
    calls of a message    written into its content, in the form of the model's family
    results               a user's message, each between <tool_response> and </tool_response>;
                          results in a row, and what the user says after them, are one message,
                          since some templates want user and assistant to take turns
    several calls         a message for each, with its result behind it

A template that fails on tools without a description or parameters is given empty ones.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kokuban.core.errors import TemplateError
from kokuban.text.call_styles import CallStyle
from kokuban.text.messages import Message

Render = Callable[[Mapping[str, Any]], str]

PROBE = "kokuban"
"""What a template is given, to see whether it writes it."""

_EMPTY = {"name": "", "description": "", "parameters": {"type": "object", "properties": {}}}
_EXAMPLE = {"name": "NAME", "arguments": {"ARGUMENT": "VALUE"}}


@dataclass(frozen=True, slots=True)
class Abilities:
    """What of a conversation with tools a template writes."""

    tools: bool = True
    system: bool = True
    calls: bool = True
    results: bool = True
    many_calls: bool = True
    """Several in one message."""

    short_tools: bool = True
    """Tools that have a name and nothing else."""


def _tool(name: str) -> Message:
    return {"type": "function", "function": {**_EMPTY, "name": name}}


def abilities_of(render: Render) -> Abilities:
    """Find out by rendering small conversations.

    Args:
        render: the template; gets its variables and raises `TemplateError`.
    """
    user = {"role": "user", "content": "x"}
    result = {"role": "tool", "content": "x", "tool_call_id": "c", "name": "f"}

    def writes(*messages: Message, tool: Message | None = None) -> bool:
        variables = {"messages": list(messages), "tools": [tool or _tool("f")]}
        marks = {"bos_token": "", "eos_token": "", "add_generation_prompt": False}
        try:
            return PROBE in render({**variables, **marks})
        except TemplateError:
            return False

    return Abilities(
        tools=writes(user, tool=_tool(PROBE)),
        system=writes({"role": "system", "content": PROBE}, user),
        calls=writes(user, _calling(PROBE), result),
        results=writes(user, _calling("f"), {**result, "content": PROBE}),
        many_calls=writes(user, _calling("f", PROBE), result, result),
        short_tools=writes(user, tool={"type": "function", "function": {"name": PROBE}}),
    )


def _calling(*names: str) -> Message:
    functions = [{"name": name, "arguments": {name: name}} for name in names]
    calls = [{"id": "c", "type": "function", "function": function} for function in functions]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def written_out(
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]] | None,
    find_abilities: Callable[[], Abilities],
    style: CallStyle,
) -> list[Message]:
    """The messages with what the template would leave out of them.

    Args:
        messages: see `messages.normalise`.
        tools: what the model may call.
        find_abilities: tells what the template writes; asked only when tools come into it.
        style: how the model writes calls.
    """
    if not tools and not any(m["role"] == "tool" or "tool_calls" in m for m in messages):
        return list(messages)
    abilities = find_abilities()
    found = list(messages)
    if not abilities.many_calls and abilities.calls:
        found = list(_one_by_one(found))
    if not abilities.calls:
        found = [_with_calls(message, style) for message in found]
    if not abilities.results or not abilities.calls:
        found = list(_with_results(found))
    if tools and not abilities.tools:
        found = _with_text(found, _description(tools, style), abilities)
    return found


def filled(
    tools: Sequence[Mapping[str, Any]] | None, find_abilities: Callable[[], Abilities]
) -> Sequence[Mapping[str, Any]] | None:
    """The tools as the template can take them."""
    if not tools or find_abilities().short_tools or not find_abilities().tools:
        return tools
    return [{**tool, "function": _filled(tool.get("function", {}))} for tool in tools]


def _filled(function: Mapping[str, Any]) -> Message:
    given = {name: value for name, value in function.items() if value is not None}
    return {**_EMPTY, **given}


def _description(tools: Sequence[Mapping[str, Any]], style: CallStyle) -> str:
    functions = [tool.get("function", tool) for tool in tools]
    listed = "\n".join(json.dumps(function, ensure_ascii=False) for function in functions)
    return (
        "You can use tools. Each is given as JSON: its name, what it does, and a JSON schema of "
        f"its arguments.\n<tools>\n{listed}\n</tools>\n"
        "To call tools, answer with the calls and nothing else, in exactly this form:\n"
        f"{style.write([_EXAMPLE])}\n"
        "The results come in the next message, between <tool_response> and </tool_response>. "
        "Where no tool helps, answer in words."
    )


def _with_text(messages: list[Message], text: str, abilities: Abilities) -> list[Message]:
    """The text at the end of the system message, or in front of the user's first words."""
    first = messages[0]
    if abilities.system:
        if first["role"] != "system":
            return [{"role": "system", "content": text}, *messages]
        return [{**first, "content": f"{first['content']}\n\n{text}".lstrip("\n")}, *messages[1:]]
    for index, message in enumerate(messages):
        if message["role"] == "user":
            changed = {**message, "content": f"{text}\n\n{message['content']}"}
            return [*messages[:index], changed, *messages[index + 1 :]]
    return [{"role": "user", "content": text}, *messages]


def _with_calls(message: Message, style: CallStyle) -> Message:
    calls = message.get("tool_calls")
    if not calls:
        return message
    text = style.write([call["function"] for call in calls])
    content = message["content"]
    rest = {name: value for name, value in message.items() if name != "tool_calls"}
    return {**rest, "content": f"{content}\n{text}" if content else text}


def _with_results(messages: Sequence[Message]) -> Iterator[Message]:
    """User messages instead of results."""
    pending: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            pending.append(f"<tool_response>\n{message['content']}\n</tool_response>")
            continue
        if pending and message["role"] == "user":
            message = {**message, "content": "\n".join([*pending, message["content"]])}
        elif pending:
            yield {"role": "user", "content": "\n".join(pending)}
        pending = []
        yield message
    if pending:
        yield {"role": "user", "content": "\n".join(pending)}


def _one_by_one(messages: Sequence[Message]) -> Iterator[Message]:
    """Each call with its result behind it."""
    index = 0
    while index < len(messages):
        message = messages[index]
        index += 1
        calls = message.get("tool_calls") or ()
        if len(calls) < 2:
            yield message
            continue
        results: list[Message] = []
        while index < len(messages) and messages[index]["role"] == "tool":
            results.append(messages[index])
            index += 1
        for number, call in enumerate(calls):
            yield {**message, "content": "" if number else message["content"], "tool_calls": [call]}
            own = [found for found in results if found.get("tool_call_id") == call.get("id")]
            result = own[0] if own else results[0] if results else None
            if result is not None:
                results.remove(result)
                yield result
        yield from results
