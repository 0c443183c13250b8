"""Reads the answers of a turn: each choice's text becomes parts, by the parser of the model."""

from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from kokuban.engine.generation import TextDelta
from kokuban.server.serving import Serving
from kokuban.text.answer_parser import AnswerParser
from kokuban.text.call_styles import CallStyle
from kokuban.text.reasoning import is_thinking

_NUM_TAIL_TOKENS = 16
"""More than the mark that opens a block of thoughts has, with white space after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """What is looked for in the answers to one prompt."""

    serving: Serving
    tools: Collection[str]
    """Names that may be called."""

    max_calls: int | None
    is_thinking: bool
    """The prompt has opened a block of thoughts."""

    def parser(self) -> AnswerParser:
        """A parser for one choice."""
        style = self.serving.chat_template.style
        reads_calls = self.serving.settings.tool_parser != "none"
        return AnswerParser(
            style.calls,
            tools=self.tools if reads_calls else (),
            max_calls=self.max_calls,
            reasons=style.reasons,
            is_thinking=self.is_thinking,
        )


def reader_of(
    serving: Serving, prompt: Sequence[int], tools: Collection[str], max_calls: int | None
) -> Reader:
    """What is to be looked for after this prompt."""
    tail = serving.model.tokenizer.decode(prompt[-_NUM_TAIL_TOKENS:], skip_special=False)
    return Reader(serving=serving, tools=tools, max_calls=max_calls, is_thinking=is_thinking(tail))


def plain_parser() -> AnswerParser:
    """A parser for what must have a form: all of it is said to the user."""
    return AnswerParser(CallStyle(name="none", openers=()))


async def parted(
    deltas: AsyncGenerator[TextDelta], parser: Callable[[], AnswerParser]
) -> AsyncGenerator[TextDelta]:
    """The same deltas with their parts.

    Args:
        parser: makes one for each choice.
    """
    parsers: dict[int, AnswerParser] = {}
    async with aclosing(deltas):
        async for delta in deltas:
            choice = parsers.get(delta.choice)
            if choice is None:
                choice = parsers[delta.choice] = parser()
            parts = choice.feed(delta.text)
            if delta.finish is not None:
                parts += choice.finish()
            yield replace(delta, parts=parts) if parts else delta
