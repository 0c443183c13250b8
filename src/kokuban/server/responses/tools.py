"""Tools of all kinds, as functions: the only kind that models are told about.

function      as it is
custom        a function with one text, `input`; its calls come back as custom_tool_call
namespace     each of its functions under NAMESPACE__NAME
all others    are run by OpenAI's servers, or shown to their models in a form of their own; they
              are left out, since agents offer them whether or not they are there
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from kokuban.core.errors import RequestError

SEPARATOR = "__"
_INPUT = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}

ToolDict = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Offered:
    """A tool as the client calls it."""

    name: str
    namespace: str | None = None
    is_custom: bool = False


@dataclass(frozen=True, slots=True)
class Toolbox:
    """The tools of a request."""

    functions: list[ToolDict] = field(default_factory=list)
    """As chat templates know them."""

    offered: dict[str, Offered] = field(default_factory=dict)
    """By the name that the model is told."""

    shown: list[ToolDict] = field(default_factory=list)
    """As the response repeats them."""

    left_out: list[str] = field(default_factory=list)
    """Kinds of the tools that are not served."""


def model_name(name: str, namespace: str | None) -> str:
    """What the model calls a tool."""
    if not namespace:
        return name
    return f"{namespace.removesuffix(SEPARATOR)}{SEPARATOR}{name}"


def open_toolbox(tools: Sequence[ToolDict]) -> Toolbox:
    """Sort the tools of a request.

    Args:
        tools: as they came; each is an object with a `type`.

    Raises:
        RequestError: one of a kind that is served has no proper name.
    """
    box = Toolbox()
    for index, tool in enumerate(tools):
        found = list(_functions(tool, f"tools[{index}]"))
        for offered, function in found:
            name = model_name(offered.name, offered.namespace)
            box.offered[name] = offered
            box.functions.append({"type": "function", "function": {"name": name, **function}})
        if found:
            box.shown.append(_shown(tool))
        else:
            box.left_out.append(str(tool["type"]))
    return box


def _functions(
    tool: ToolDict, path: str, namespace: str | None = None
) -> Iterator[tuple[Offered, ToolDict]]:
    match tool.get("type"):
        case "function":
            kept = ("description", "parameters", "strict")
            function = {key: tool[key] for key in kept if tool.get(key) is not None}
            yield Offered(_name(tool, path), namespace), function
        case "custom":
            function = {"description": _custom_description(tool), "parameters": _INPUT}
            yield Offered(_name(tool, path), namespace, is_custom=True), function
        case "namespace" if namespace is None:
            name = _name(tool, path)
            inner = tool.get("tools")
            for index, each in enumerate(inner if isinstance(inner, list) else ()):
                if isinstance(each, dict):
                    yield from _functions(each, f"{path}.tools[{index}]", name)


def _name(tool: ToolDict, path: str) -> str:
    name = tool.get("name")
    if not isinstance(name, str) or not name:
        raise RequestError(f"{path}.name is missing", param=f"{path}.name")
    return name


def _custom_description(tool: ToolDict) -> str:
    """What the tool does, and what its input looks like where that is a grammar."""
    text = str(tool.get("description") or "")
    form = tool.get("format")
    if isinstance(form, dict) and form.get("type") == "grammar":
        syntax, definition = form.get("syntax", "lark"), form.get("definition", "")
        text += f"\n\nThe input follows this {syntax} grammar:\n{definition}"
    return text.strip()


def _shown(tool: ToolDict) -> ToolDict:
    if tool["type"] != "function":
        return tool
    return {"parameters": None, "strict": None, **tool}


def chat_tool_choice(choice: Any, box: Toolbox) -> Any:
    """A choice of tools in the form of chat completions; None where nothing is to be said.

    Raises:
        RequestError: it asks for a tool that is not offered, or for one although there is none.
    """
    if choice in (None, "auto", "none"):
        return choice if box.functions else None
    if not box.functions:
        raise RequestError(
            f"tool_choice={_short(choice)} asks for a call, but tools offers no function",
            param="tool_choice",
        )
    if isinstance(choice, str):
        return choice  # "required"; others are refused where chat's are.
    if choice.get("type") == "allowed_tools":
        listed = choice.get("tools") if isinstance(choice.get("tools"), list) else []
        tools = [_named(tool, box) for tool in listed]
        mode = choice.get("mode", "auto")
        return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}
    return _named(choice, box)


def _named(choice: Any, box: Toolbox) -> dict[str, Any]:
    kind = choice.get("type") if isinstance(choice, dict) else None
    if kind not in ("function", "custom"):
        raise RequestError(
            f"tool_choice names a tool of type {str(kind)[:64]!r}; only function and custom tools "
            f"are served",
            param="tool_choice",
            code="unsupported_tool",
        )
    name = model_name(str(choice.get("name", "")), str(choice.get("namespace") or ""))
    if name not in box.offered:
        raise RequestError(
            f"tool_choice names {name[:64]!r}, which tools does not offer", param="tool_choice"
        )
    return {"type": "function", "function": {"name": name}}


def _short(choice: Any) -> str:
    return json.dumps(choice)[:64]
