"""What an answer consists of, once its text is understood: words, thoughts and tool calls.

A parser of `text/` cuts a choice's text into parts as it comes; the forms of `server/` write them
in the shape of their API. The parts of a choice, in order, say all that its text says.
"""

from collections.abc import Iterable
from typing import NamedTuple


class TextPart(NamedTuple):
    """A piece of what the model says to the user. Never empty."""

    text: str


class ReasoningPart(NamedTuple):
    """A piece of what it thinks before it says something. Never empty."""

    text: str


class CallPart(NamedTuple):
    """A tool call begins, or its arguments go on."""

    number: int
    """Which call of the choice, from 0. They begin in this order and do not overlap."""

    name: str | None
    """Of the tool, with the first part of a call; None in those that follow."""

    arguments: str
    """A piece of the arguments' JSON text; the pieces of a call join to the whole. May be empty
    in the first part."""


Part = TextPart | ReasoningPart | CallPart


class WholeCall(NamedTuple):
    """A call with all of its arguments."""

    name: str
    arguments: str
    """JSON text."""


def whole_calls(parts: Iterable[Part]) -> list[WholeCall]:
    """The calls of a choice, each put together from its pieces."""
    calls: list[WholeCall] = []
    for part in parts:
        if isinstance(part, CallPart):
            if part.name is not None:
                calls.append(WholeCall(part.name, part.arguments))
            else:
                calls[-1] = calls[-1]._replace(arguments=calls[-1].arguments + part.arguments)
    return calls
