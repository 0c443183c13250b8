"""Makes the grammar of an answer that must call tools, may call some, or must have a form.

    forced    [thoughts] calls
    free      [thoughts] words, and once the mark of a call is there, calls       (strict tools)
    formed    [thoughts] the form, or calls

Calls are written in the form of the model's family, so that its parser reads them back and its
template writes them again as they were. Arguments follow the JSON schema of their tool. In thoughts
anything may stand.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kokuban.core.errors import RequestError
from kokuban.text.answer_parser import AnswerStyle
from kokuban.text.call_styles import CallStyle
from kokuban.text.grammar import json_rule, lark_grammar, lark_text
from kokuban.text.json_schema import MAX_CHARACTERS
from kokuban.text.reasoning import CLOSE, OPEN, Thoughts

MAX_CALLS = 16
"""Of one answer, where calls are forced: a small model may not find an end by itself."""

_ANYTHING = "ANYTHING: /(.|\\n)*/\n"
_WHITE = "WHITE: /[ \\t\\r\\n]{1,4}/\n"
_THINKING = r"[ \t\r\n]*<think>(.|\n)*"
_LINE = r"[ \t]*([^ \t\r\n\[{][^\n]*)?"
"""A line that begins no call, in a style in which a brace at its start does."""

_LINES = f"LINES: /({_LINE}\\n)+/\nWORDS: /({_LINE}\\n)*{_LINE}/\n"

_OPEN_KEYS = frozenset(
    {
        "additionalProperties", "patternProperties", "unevaluatedProperties", "propertyNames",
        "allOf", "anyOf", "oneOf", "$ref", "if", "dependentSchemas",
    }
)  # fmt: skip
"""Keywords beside which it is not plain what other properties are allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedTool:
    """A tool that may be called."""

    name: str
    parameters: Mapping[str, Any] | None
    """The JSON schema of its arguments; None: it takes none."""

    param: str
    """The field of the request that they came in."""

    is_bound: bool = True
    """Its arguments must be valid under the schema, and not only a JSON object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerGrammar:
    """What the grammar is made of.

    Args:
        style: how calls and thoughts are written.
        specials: ids of those marks of the style that are special tokens.
        thoughts: what the answer may begin with.
    """

    style: AnswerStyle
    specials: Mapping[str, int]
    thoughts: Thoughts = Thoughts.NONE

    def forced(self, tools: Sequence[OfferedTool], max_calls: int | None) -> str:
        """At least one call and nothing else."""
        return self._grammar("calls", self._calls(tools, max_calls))

    def free(self, tools: Sequence[OfferedTool], max_calls: int | None) -> str:
        """Words, calls, or words and then calls. Calls are bound where they are marked; read them
        by `CallStyle.only_marked`."""
        mark = self.style.calls.mark
        if mark is None:
            return self._grammar("(WORDS | LINES? calls)", self._calls(tools, max_calls) + _LINES)
        words, rules = "ANYTHING", ""
        if self.thoughts is Thoughts.MAY_BEGIN:
            words, rules = "UNTHINKING", f"UNTHINKING: ANYTHING & ~/{_THINKING}/\n"
        rules += self._calls(tools, max_calls, skip=mark.text)
        rules += self._until("until_mark", words, mark.text)
        return self._grammar(f"({words} | until_mark calls)", rules)

    def formed(self, form: str, tools: Sequence[OfferedTool], max_calls: int | None) -> str:
        """What another grammar matches, or calls.

        Args:
            form: a grammar as `text.grammar` makes it.
            tools: empty: no calls.
        """
        what = "(@form | calls)" if tools else "@form"
        # A brace may begin both: only as JSON can they go on side by side.
        as_json = self.style.calls.mark is None
        calls = self._calls(tools, max_calls, as_json=as_json) if tools else ""
        grammars = json.loads(self._grammar(what, calls))["grammars"]
        [named, *others] = json.loads(form)["grammars"]
        return json.dumps({"grammars": [*grammars, {**named, "name": "form"}, *others]})

    def _grammar(self, what: str, rules: str) -> str:
        text = f"start: {what}\n"
        if self.thoughts is not Thoughts.NONE:
            may = "?" if self.thoughts is Thoughts.MAY_BEGIN else ""
            text = f"start: (thoughts WHITE?){may} {what}\n{_WHITE}" + self._thoughts()
        return lark_grammar(text + rules + _ANYTHING)

    def _thoughts(self) -> str:
        opening = self._text(OPEN) + " " if self.thoughts is Thoughts.MAY_BEGIN else ""
        if CLOSE in self.specials:
            return f"thoughts: {opening}ANYTHING {self._text(CLOSE)}\n"
        if OPEN in self.specials and opening:
            return f"thoughts: {opening}until_close\n" + self._until(
                "until_close", "ANYTHING", CLOSE
            )
        return f"thoughts[lazy]: {opening}ANYTHING {self._text(CLOSE)}\n"

    def _until(self, rule: str, words: str, mark: str) -> str:
        """A rule for words up to the first occurrence of a mark, and the mark."""
        lazy = "" if mark in self.specials else "[lazy]"
        return f"{rule}{lazy}: {words} {self._text(mark)}\n"

    def _calls(
        self,
        tools: Sequence[OfferedTool],
        max_calls: int | None,
        *,
        skip: str = "",
        as_json: bool = False,
    ) -> str:
        """The rule `calls` and those below it.

        Args:
            skip: the beginning, which was written already.
            as_json: each call is one JSON value of its own.
        """
        style = self.style.calls
        lead = (style.head + style.before_call).removeprefix(skip)
        joint = style.after_call + style.between + style.before_call
        more = min(max_calls or MAX_CALLS, MAX_CALLS) - 1
        again = f" ({self._text(joint)} call){{0,{more}}}" if more else ""
        end = style.after_call + style.tail
        rules = f"calls: {self._text(lead)} call{again} {self._text(end)}\n"
        rules += "call: " + " | ".join(f"call_{i}" for i in range(len(tools))) + "\n"
        write = _json_call if as_json else _call
        for index, tool in enumerate(tools):
            rules += write(index, tool, style)
            if len(rules) > MAX_CHARACTERS:
                raise RequestError(
                    f"the parameters of the tools become a grammar of more than {MAX_CHARACTERS} "
                    f"characters; offer fewer tools, or smaller schemas",
                    param=tool.param,
                )
        return rules

    def _text(self, text: str) -> str:
        """A text in Lark; marks that are special tokens are named by their ids."""
        if not text:
            return ""
        if not self.specials:
            return lark_text(text)
        split = re.split("(" + "|".join(map(re.escape, self.specials)) + ")", text)
        pieces = (
            f"<[{self.specials[piece]}]>" if piece in self.specials else lark_text(piece)
            for piece in split
            if piece
        )
        return " ".join(pieces)


def blamed(error: RequestError, tools: Sequence[OfferedTool]) -> RequestError:
    """An error of a grammar of calls, with the name of the tool whose parameters are at fault."""
    from llguidance import LLMatcher

    for tool in tools:
        alone = lark_grammar("start: " + _rule(tool, _schema(tool)))
        is_wrong, problems = LLMatcher.validate_grammar_with_warnings(alone)
        if is_wrong:
            reason = problems[0].partition("1 | ")[0]  # Behind it the grammar is quoted.
            return _cannot_follow(tool, " ".join(reason.split())[:300])
    return error


def _call(index: int, tool: OfferedTool, style: CallStyle) -> str:
    """The rule of a call, written exactly as the style writes it."""
    name = json.dumps(tool.name, ensure_ascii=False)
    begin = lark_text(f'{{"name": {name}, "{style.arguments_key}": ')
    arguments = _rule(tool, _schema(tool))
    return f'call_{index}: {begin} arguments_{index} "}}"\narguments_{index}: {arguments}\n'


def _json_call(index: int, tool: OfferedTool, style: CallStyle) -> str:
    schema = _schema(tool)
    shared: dict[str, Any] = {
        key: schema.pop(key) for key in ("$defs", "definitions") if key in schema
    }
    properties: dict[str, Any] = {"name": {"const": tool.name}, style.arguments_key: schema}
    whole: dict[str, Any] = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
        **shared,  # References to them begin at the root.
    }
    return f"call_{index}: {_rule(tool, whole)}\n"


def _rule(tool: OfferedTool, schema: dict[str, Any]) -> str:
    try:
        return json_rule(schema, param=tool.param)
    except RequestError as error:
        raise _cannot_follow(tool, str(error)) from None


def _cannot_follow(tool: OfferedTool, problem: str) -> RequestError:
    return RequestError(
        f"the arguments of the tool {tool.name!r} cannot be held to its parameters: {problem}",
        param=tool.param,
    )


def _schema(tool: OfferedTool) -> dict[str, Any]:
    """The schema of an object. Where it lists properties and says nothing of others there are no
    others: a small model would make some up."""
    if not tool.is_bound:
        return {"type": "object"}
    schema = {"type": "object", **(tool.parameters or {"properties": {}})}
    if schema["type"] != "object":
        raise RequestError(
            f"the parameters of the tool {tool.name!r} are of type {schema['type']!r}, and "
            f"arguments are an object",
            param=tool.param,
        )
    if "properties" in schema and not _OPEN_KEYS.intersection(schema):
        schema["additionalProperties"] = False
    return schema
