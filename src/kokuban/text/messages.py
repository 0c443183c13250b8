"""Turns the messages of a request into what chat templates expect.

- `content` becomes one text: text parts are joined by a newline; null becomes the empty text on
  an assistant turn that has tool calls or thoughts, and is refused elsewhere. Parts that are not
  text are refused.
- A result of a tool gets the name of the function that was called, where it has none.
- Thoughts are `reasoning_content`; `reasoning`, as some clients call them, becomes it.
- `arguments` of a tool call become an object: clients send JSON text, templates loop over keys.
- The role `developer` becomes `system` unless the template knows it.

Fields that are not known here are passed on to the template as they are.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from kokuban.core.errors import RequestError
from kokuban.text.validate import check_json

ROLES = ("system", "developer", "user", "assistant", "tool")
PART_SEPARATOR = "\n"

Message = dict[str, Any]


def normalise(messages: Sequence[Mapping[str, Any]], *, keep_developer: bool) -> list[Message]:
    """Checked copies of the messages.

    Args:
        messages: as in the request.
        keep_developer: the template knows the role `developer`.

    Raises:
        RequestError: names the field at fault.
    """
    if not messages:
        raise RequestError("messages is empty; send at least one message", param="messages")
    found = [
        _message(message, f"messages[{index}]", keep_developer)
        for index, message in enumerate(messages)
    ]
    _name_results(found)
    return found


def _name_results(messages: Sequence[Message]) -> None:
    """Say in each result which function it is of: some templates want it, and clients send ids."""
    names: dict[str, str] = {}
    for message in messages:
        for call in message.get("tool_calls", ()):
            names[str(call.get("id"))] = call["function"]["name"]
        if message["role"] == "tool" and not message.get("name"):
            name = names.get(str(message.get("tool_call_id")))
            if name is not None:
                message["name"] = name


def _message(raw: Mapping[str, Any], param: str, keep_developer: bool) -> Message:
    if not isinstance(raw, Mapping):
        raise RequestError(f"{param} is no object", param=param)
    message: Message = check_json(raw, param)
    role = message.get("role")
    if role not in ROLES:
        raise RequestError(
            f"{param}.role is {role!r}; known roles are {', '.join(ROLES)}", param=f"{param}.role"
        )
    if role == "developer" and not keep_developer:
        message["role"] = "system"
    calls = message.get("tool_calls")
    if not calls:
        message.pop("tool_calls", None)
    else:
        message["tool_calls"] = _tool_calls(calls, f"{param}.tool_calls")
    thoughts = message.pop("reasoning", None)
    if isinstance(thoughts, str) and message["role"] == "assistant":
        message.setdefault("reasoning_content", thoughts)
    message["content"] = _content(message, f"{param}.content")
    return message


def _content(message: Message, param: str) -> str:
    content: Any = message.get("content")
    if isinstance(content, str):
        return content
    if content is None:
        says_more = message.get("reasoning_content") or "tool_calls" in message
        if message["role"] == "assistant" and says_more:
            return ""
        raise RequestError(
            f"{param} is missing; only an assistant message with tool_calls or reasoning_content "
            f"may have none",
            param=param,
        )
    if not isinstance(content, list) or not content:
        raise RequestError(
            f"{param} must be a text or a list of at least one text part", param=param
        )
    return PART_SEPARATOR.join(
        _part(part, f"{param}[{index}]") for index, part in enumerate(content)
    )


def _part(part: Any, param: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, dict) else None
    if kind not in ("text", "input_text", "output_text", "refusal"):
        raise RequestError(
            f"{param} is of type {kind!r}; this model reads text parts only", param=f"{param}.type"
        )
    text = part.get("refusal" if kind == "refusal" else "text")
    if not isinstance(text, str):
        raise RequestError(f"{param}.text is no text", param=f"{param}.text")
    return text


def _tool_calls(calls: Any, param: str) -> list[Message]:
    if not isinstance(calls, list):
        raise RequestError(f"{param} is no list", param=param)
    return [_tool_call(call, f"{param}[{index}]") for index, call in enumerate(calls)]


def _tool_call(call: Any, param: str) -> Message:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise RequestError(f"{param}.function.name is missing", param=f"{param}.function.name")
    arguments = _arguments(function.get("arguments"), f"{param}.function.arguments")
    return {"type": "function", **call, "function": {**function, "arguments": arguments}}


def _arguments(arguments: Any, param: str) -> dict[str, Any]:
    """Arguments as an object; "" and null are the empty one."""
    if arguments is None or arguments == "":
        return {}
    if isinstance(arguments, str):
        try:
            # Numbers of any size are kept as JSON has them; NaN and Infinity are no JSON.
            arguments = json.loads(arguments, parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise RequestError(f"{param} is no JSON: {error}", param=param) from None
    if not isinstance(arguments, dict):
        raise RequestError(f"{param} is no JSON object", param=param)
    checked: dict[str, Any] = check_json(arguments, param)
    return checked


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")
