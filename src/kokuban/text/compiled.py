"""A chat template that was compiled: how it wants messages, and what it makes of them.

Importing this module imports Jinja, which takes a while: it is imported with the first chat.
"""

from collections.abc import Mapping
from typing import Any

import jinja2

from kokuban.core.errors import ModelError, TemplateError
from kokuban.text.messages import Message
from kokuban.text.sandbox import MAX_CHARS, Sandbox, TooMuchWork, counting
from kokuban.text.tool_prompt import PROBE, Abilities, abilities_of

_FAILURES = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


class CompiledTemplate:
    """One template, and what was found out about it.

    Args:
        sandbox: where it runs.
        source: its text.

    Raises:
        ModelError: it cannot be parsed.
    """

    def __init__(self, sandbox: Sandbox, source: str) -> None:
        self.source = source
        try:
            self._template = sandbox.from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:
            where = (
                f" (line {error.lineno})" if isinstance(error, jinja2.TemplateSyntaxError) else ""
            )
            raise ModelError(f"the chat template cannot be read: {error}{where}") from error
        self.knows_developer = "developer" in source
        self._wants_parts = False
        self._wants_parts = self._ignores_text()
        self._abilities: Abilities | None = None

    def find_abilities(self) -> Abilities:
        """What of a conversation with tools it writes; found out at the first time."""
        if self._abilities is None:
            self._abilities = abilities_of(self.render)
        return self._abilities

    def render(self, variables: Mapping[str, Any]) -> str:
        """The text that the template makes.

        Raises:
            TemplateError: with the template's own message where it has one.
        """
        if self._wants_parts:
            messages = [_with_parts(message) for message in variables["messages"]]
            variables = {**variables, "messages": messages}
        pieces: list[str] = []
        num_chars = 0
        try:
            with counting():
                for piece in self._template.generate(variables):
                    pieces.append(piece)
                    num_chars += len(piece)
                    if num_chars > MAX_CHARS:
                        raise TooMuchWork(f"the prompt is above {MAX_CHARS} characters")
        except _FAILURES as error:
            raise TemplateError(
                f"the chat template refused the messages: {_reason(error)}", param="messages"
            ) from error
        return "".join(pieces)

    def _ignores_text(self) -> bool:
        message = {"role": "user", "content": PROBE}
        try:
            if PROBE in self.render({"messages": [message]}):
                return False
            return PROBE in self.render({"messages": [_with_parts(message)]})
        except TemplateError:
            return False  # It refuses a lone message; most templates read text.


def _with_parts(message: Mapping[str, Any]) -> Message:
    return {**message, "content": [{"type": "text", "text": message["content"]}]}


def _reason(error: Exception) -> str:
    if isinstance(error, jinja2.TemplateError | TypeError | ValueError) and str(error):
        return str(error)
    return f"{type(error).__name__}: {error}"
