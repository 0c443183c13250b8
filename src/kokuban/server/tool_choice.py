"""Which tools an answer may, must or must not call: `tools`, `tool_choice`, `parallel_tool_calls`.

    none            the model is not told of the tools
    auto            it calls what it likes; with strict tools, only as their schemas want it
    required        it calls at least one
    a function      it calls this one, once
    allowed_tools   auto or required, among some of the tools; it is told of all of them, so that
                    the prompt stays what it was

A choice of a tool that is not offered is refused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from kokuban.core.errors import RequestError
from kokuban.server.openai_models import ChatRequest
from kokuban.text.answer_grammar import OfferedTool

_KNOWN = (
    '\'none\', \'auto\', \'required\', {"type": "function", "function": {"name": ...}} or '
    '{"type": "allowed_tools", ...}'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolPlan:
    """What of the tools holds for the answers to one request."""

    tools: tuple[OfferedTool, ...] = ()
    """Those that may be called."""

    is_forced: bool = False
    """An answer has at least one call and nothing else."""

    max_calls: int | None = None

    @property
    def parameter_names(self) -> dict[str, tuple[str, ...]]:
        """By tool, in the order in which its schema lists them."""
        return {tool.name: tuple(_properties(tool.parameters)) for tool in self.tools}

    @property
    def is_bound(self) -> bool:
        """Whether arguments must follow a schema, whatever is called."""
        return self.is_forced or any(tool.is_bound for tool in self.tools)


def plan_tools(body: ChatRequest) -> ToolPlan:
    """What a request says about tools.

    Raises:
        RequestError: `tool_choice` is malformed or names a tool that is not offered.
    """
    choice = "auto" if body.tool_choice is None else body.tool_choice
    max_calls = 1 if body.parallel_tool_calls is False else None
    if choice in ("none", "auto", "required"):
        mode, names = str(choice), None
    elif not isinstance(choice, Mapping):
        _refuse(f"tool_choice is {choice!r}; known are {_KNOWN}")
    elif choice.get("type") == "allowed_tools":
        mode, names = _allowed(choice)
    else:
        mode, names, max_calls = "required", [_function_name(choice, "tool_choice")], 1
    tools = _chosen(body, mode, names)
    return ToolPlan(tools=tools, is_forced=mode == "required", max_calls=max_calls)


def _properties(parameters: Mapping[str, Any] | None) -> Mapping[str, Any]:
    properties = (parameters or {}).get("properties")
    return properties if isinstance(properties, Mapping) else {}


def _chosen(body: ChatRequest, mode: str, names: Sequence[str] | None) -> tuple[OfferedTool, ...]:
    offered = {tool.function.name for tool in body.tools or ()}
    if mode == "required" and not offered:
        _refuse("tool_choice asks for a call, but there are no tools; send tools")
    for name in names or ():
        if name not in offered:
            known = ", ".join(sorted(offered)) or "none"
            _refuse(f"tool_choice names the tool {name!r}, which is not offered; tools are {known}")
    if mode == "none":
        return ()
    return tuple(
        OfferedTool(
            name=tool.function.name,
            parameters=tool.function.parameters,
            param=f"tools[{index}].function.parameters",
            is_bound=mode == "required" or bool(tool.function.strict),
        )
        for index, tool in enumerate(body.tools or ())
        if names is None or tool.function.name in names
    )


def _allowed(choice: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Mode and names of a choice of allowed tools, nested as OpenAI has it or flat."""
    allowed = choice.get("allowed_tools", choice)
    mode = allowed.get("mode", "auto") if isinstance(allowed, Mapping) else None
    tools = allowed.get("tools") if isinstance(allowed, Mapping) else None
    if mode not in ("auto", "required") or not isinstance(tools, list) or not tools:
        _refuse(
            "tool_choice of type allowed_tools needs the mode 'auto' or 'required' and a list of "
            "at least one tool"
        )
    return mode, [_function_name(tool, "tool_choice.allowed_tools.tools") for tool in tools]


def _function_name(choice: Any, where: str) -> str:
    kind = choice.get("type", "function") if isinstance(choice, Mapping) else None
    if kind != "function":
        _refuse(f"{where} is of type {kind!r}; known are {_KNOWN}")
    function = choice.get("function", choice)
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        _refuse(f"{where} of type function names no function: function.name is missing")
    return name


def _refuse(message: str) -> NoReturn:
    raise RequestError(message, param="tool_choice", code="invalid_value")
