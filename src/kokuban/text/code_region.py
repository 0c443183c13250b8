"""Reads calls that are written as Python, which gemma puts into a fence of its own.

    ```tool_code
    print(weather(city="Oslo"))
    ```

The code is never run: it is parsed, and only calls of offered tools with literal arguments count.
Anything else in it, and the whole is read as JSON calls or comes out as text. So nothing can be
passed on before its end.
"""

import ast
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from kokuban.text.call_region import CallRegion
from kokuban.text.call_styles import Opener
from kokuban.text.held import mark_at_end
from kokuban.text.part_sink import PartSink

MAX_CODE = 20_000
"""Characters of code that are parsed; longer code is text."""

_PARSE_ERRORS = (SyntaxError, ValueError, TypeError, RecursionError, MemoryError)


class CodeCall(NamedTuple):
    """A call that was found in code."""

    name: str
    arguments: str
    """JSON text."""


class CodeRegion:
    """One block of code; feed it until it is `done`. See `CallRegion` for the arguments."""

    def __init__(
        self, opener: Opener, before: str, tools: Mapping[str, Sequence[str]], sink: PartSink
    ) -> None:
        self.done = False
        self.after_call = False
        self._opener = opener
        self._before = before
        self._tools = tools
        self._sink = sink
        self._code: list[str] = []
        self._held = ""

    def feed(self, text: str, at: int) -> int:
        """Take what belongs to the block; returns the index of the first character behind it."""
        close = self._opener.close
        while at < len(text) and not self.done:
            self._code.append(text[at])
            self._held = mark_at_end(self._held + text[at], close)
            at += 1
            if self._held == close:
                self._end("".join(self._code)[: -len(close)], close)
        return at

    def finish(self) -> None:
        """The text has ended here."""
        if not self.done:
            self._end("".join(self._code), "")

    def _end(self, code: str, close: str) -> None:
        self.done = True
        calls = python_calls(code, self._tools)
        for call in calls:
            self._sink.begin_call(call.name)
            self._sink.arguments(call.arguments)
        self.after_call = bool(calls)
        if not calls:
            self._read_as_json(code + close)

    def _read_as_json(self, text: str) -> None:
        region = CallRegion(self._opener, self._before, self._tools, self._sink)
        rest = text[region.feed(text, 0) :]
        if not region.done:
            region.finish()
        self.after_call = region.after_call and not rest.strip()
        if not self.after_call:
            self._sink.text(rest)


def python_calls(code: str, tools: Mapping[str, Sequence[str]]) -> list[CodeCall]:
    """The calls that a text consists of; none if it is anything else, too.

    Args:
        tools: the names of each tool's parameters, in the order in which arguments without a name
            are taken for them.
    """
    if len(code) > MAX_CODE:
        return []
    try:
        statements = ast.parse(code.strip()).body
        calls = [_call(node, tools) for statement in statements for node in _expressions(statement)]
    except _PARSE_ERRORS:
        return []
    return calls


def _expressions(statement: ast.stmt) -> Iterator[ast.expr]:
    """What is called in a statement: alone, in a list, printed, or given a name."""
    if not isinstance(statement, ast.Expr | ast.Assign):
        raise ValueError("a statement that calls nothing")
    waiting = [statement.value]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.List | ast.Tuple):
            waiting += reversed(node.elts)
        elif isinstance(node, ast.Call) and _name(node) == "print" and len(node.args) == 1:
            waiting.append(node.args[0])
        else:
            yield node


def _call(node: ast.expr, tools: Mapping[str, Sequence[str]]) -> CodeCall:
    if not isinstance(node, ast.Call):
        raise ValueError("no call")
    name = _name(node)
    if name not in tools:
        name = name.rpartition(".")[2]  # As in tools.weather(...).
    if name not in tools or len(node.args) > len(tools[name]):
        raise ValueError("no call of a tool that is offered")
    arguments: dict[str, Any] = {
        key: ast.literal_eval(value) for key, value in zip(tools[name], node.args, strict=False)
    }
    for keyword in node.keywords:
        if keyword.arg is None or keyword.arg in arguments:
            raise ValueError("an argument without a name, or twice")
        arguments[keyword.arg] = ast.literal_eval(keyword.value)
    text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    text.encode()  # Half of a surrogate pair could not be sent.
    return CodeCall(name, text)


def _name(node: ast.Call) -> str:
    """The dotted name of what is called; empty if it has none."""
    names: list[str] = []
    function = node.func
    while isinstance(function, ast.Attribute):
        names.append(function.attr)
        function = function.value
    return ".".join([function.id, *reversed(names)]) if isinstance(function, ast.Name) else ""
