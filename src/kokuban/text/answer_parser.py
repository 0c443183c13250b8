"""Understands the text of one choice: what it thinks, what it says, which tools it calls."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from kokuban.text.call_parser import CallParser
from kokuban.text.call_styles import CallStyle, calls_of_template
from kokuban.text.part_sink import PartSink
from kokuban.text.parts import Part
from kokuban.text.reasoning import CLOSE, OPEN, ReasoningParser


@dataclass(frozen=True, slots=True)
class AnswerStyle:
    """How a model writes what is not plain words."""

    calls: CallStyle
    reasons: bool
    """It may think between marks before it answers."""

    @property
    def marks(self) -> tuple[str, ...]:
        """Texts that a parser must see, also where they are special tokens."""
        pairs = ((opener.text, opener.close) for opener in self.calls.openers)
        thoughts = (OPEN, CLOSE) if self.reasons else ()
        return (*(mark for pair in pairs for mark in pair if mark), *thoughts)


def style_of_template(source: str) -> AnswerStyle:
    """The style that a chat template teaches."""
    return AnswerStyle(calls_of_template(source), reasons=CLOSE in source)


class AnswerParser:
    """Text in, parts out. The joined parts do not depend on how the text was cut.

    Args:
        style: how calls are written.
        tools: names that may be called, each with the names of its parameters in their order;
            with none, calls are text.
        max_calls: further calls are dropped; None: there is no limit.
        reasons: thoughts are looked for.
        is_thinking: the prompt has opened a block of thoughts.
    """

    def __init__(
        self,
        style: CallStyle,
        *,
        tools: Mapping[str, Sequence[str]] = MappingProxyType({}),
        max_calls: int | None = None,
        reasons: bool = False,
        is_thinking: bool = False,
    ) -> None:
        self._sink = PartSink(max_calls)
        self._calls = CallParser(style, tools, self._sink) if tools else None
        say = self._calls.feed if self._calls else self._sink.text
        self._thoughts = (
            ReasoningParser(self._sink.reasoning, say, is_open=is_thinking) if reasons else None
        )
        self._take = self._thoughts.feed if self._thoughts else say

    def feed(self, text: str) -> tuple[Part, ...]:
        """The parts that are certain after another piece."""
        if text:
            self._take(text)
        return self._sink.take()

    def finish(self) -> tuple[Part, ...]:
        """What was held back, once the answer has ended."""
        for parser in (self._thoughts, self._calls):
            if parser is not None:
                parser.finish()
        return self._sink.take()
