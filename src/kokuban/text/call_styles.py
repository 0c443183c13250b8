r"""How model families write tool calls: what opens them, and which form is written for them.

    hermes    <tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>
    smollm2   <tool_call>[{"name": "f", "arguments": {}}]</tool_call>
    llama3    {"name": "f", "parameters": {}}, also after <|python_tag|>
    mistral   [TOOL_CALLS] [{"name": "f", "arguments": {}}]
    gemma     as llama3; it also puts calls into fences, and Python into ```tool_code
    generic   any of these

What is read is wider than what is written: small models also put the calls of a marked form into
a fence, or write them bare. See also `call_region`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple


class Opener(NamedTuple):
    """Text after which calls are looked for."""

    text: str
    close: str = ""
    """What ends them; empty: nothing does."""

    is_code: bool = False
    """They may be Python."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallStyle:
    """The form of one family. The parts of what is written join as
    `head call between call tail`."""

    name: str
    openers: tuple[Opener, ...]
    bare: bool = False
    """A JSON object at the start of a line may be a call."""

    arguments_key: str = "arguments"
    head: str = ""
    before_call: str = ""
    after_call: str = ""
    between: str = "\n"
    tail: str = ""

    def write(self, calls: Sequence[Mapping[str, Any]]) -> str:
        """Calls as the model would write them.

        Args:
            calls: functions, with `name` and `arguments` as an object.
        """
        texts = (self._call(call["name"], call["arguments"]) for call in calls)
        return self.head + self.between.join(texts) + self.tail

    @property
    def mark(self) -> Opener | None:
        """What opens the calls that are written; None: a brace at the start of a line."""
        lead = self.head + self.before_call
        return next((each for each in self.openers if lead.startswith(each.text)), None)

    def only_marked(self) -> "CallStyle":
        """The same form, read only where it is marked as it is written; itself without a mark."""
        mark = self.mark
        return self if mark is None else replace(self, openers=(mark,), bare=False)

    def _call(self, name: str, arguments: Any) -> str:
        call = {"name": name, self.arguments_key: arguments}
        return self.before_call + json.dumps(call, ensure_ascii=False) + self.after_call


TAG = Opener("<tool_call>", "</tool_call>")
_PYTHON_TAG = Opener("<|python_tag|>")
_LIST_MARK = Opener("[TOOL_CALLS]")
_FENCES = (
    Opener("```json", "```"),
    Opener("```tool_call", "```"),
    Opener("```tool_code", "```", is_code=True),
    Opener("```", "```"),
)

_HERMES = CallStyle(
    name="hermes",
    openers=(TAG, *_FENCES),
    bare=True,
    before_call="<tool_call>\n",
    after_call="\n</tool_call>",
)
_SMOLLM2 = CallStyle(
    name="smollm2",
    openers=(TAG, *_FENCES),
    bare=True,
    head="<tool_call>[",
    between=", ",
    tail="]</tool_call>",
)
_LLAMA3 = CallStyle(
    name="llama3", openers=(_PYTHON_TAG,), bare=True, arguments_key="parameters", between="; "
)
_MISTRAL = CallStyle(
    name="mistral", openers=(_LIST_MARK,), head="[TOOL_CALLS] [", between=", ", tail="]"
)
_GEMMA = CallStyle(name="gemma", openers=_FENCES, bare=True, arguments_key="parameters")
_GENERIC = CallStyle(
    name="generic",
    openers=(TAG, _PYTHON_TAG, _LIST_MARK, *_FENCES),
    bare=True,
    before_call="<tool_call>\n",
    after_call="\n</tool_call>",
)
STYLES = {style.name: style for style in (_HERMES, _SMOLLM2, _LLAMA3, _MISTRAL, _GEMMA, _GENERIC)}


def calls_of_template(source: str) -> CallStyle:
    """The form that a chat template teaches; for one that knows no tools, its model's."""
    signs = (
        ("<tool_call>", _HERMES),
        ("<|python_tag|>", _LLAMA3),
        ("dictionary of argument name and its value", _LLAMA3),
        ("[TOOL_CALLS]", _MISTRAL),
        ("SmolLM", _SMOLLM2),
        ("<start_of_turn>", _GEMMA),
    )
    return next((style for sign, style in signs if sign in source), _GENERIC)
