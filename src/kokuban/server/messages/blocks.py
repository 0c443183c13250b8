"""From the parts of an answer to blocks of content."""

from dataclasses import dataclass, field

import msgspec

from kokuban.server.messages.answers import (
    SIGNATURE,
    InputPiece,
    OutputBlock,
    Piece,
    TextBlock,
    TextPiece,
    ThinkingBlock,
    ThinkingPiece,
    ToolUseBlock,
)
from kokuban.server.raw_json import json_object
from kokuban.text.parts import CallPart, Part, ReasoningPart, TextPart

_NO_ARGUMENTS = msgspec.Raw(b"{}")


@dataclass(slots=True)
class OpenBlock:
    """A block that may go on.

    Args:
        first: the part that it begins with.
        request_id: makes the ids of calls.
    """

    first: Part
    request_id: str
    pieces: list[str] = field(default_factory=list)

    def goes_on(self, part: Part) -> bool:
        """Whether a part belongs to it."""
        if isinstance(part, CallPart):
            return isinstance(self.first, CallPart) and part.number == self.first.number
        return isinstance(part, type(self.first))

    def keep(self, part: Part) -> None:
        """Take a part for `whole`."""
        self.pieces.append(part.arguments if isinstance(part, CallPart) else part.text)

    @property
    def is_whole_call(self) -> bool:
        """Whether it is a call, and all of its arguments were kept."""
        return isinstance(self.first, CallPart) and json_object("".join(self.pieces)) is not None

    def empty(self) -> OutputBlock:
        """How a stream opens it."""
        match self.first:
            case TextPart():
                return TextBlock(text="")
            case ReasoningPart():
                return ThinkingBlock(thinking="", signature="")
            case CallPart(number, name):
                return ToolUseBlock(id=self._call_id(number), name=name or "", input=_NO_ARGUMENTS)

    def whole(self) -> OutputBlock:
        """All that was kept."""
        text = "".join(self.pieces)
        match self.first:
            case TextPart():
                return TextBlock(text=text)
            case ReasoningPart():
                return ThinkingBlock(thinking=text, signature=SIGNATURE)
            case CallPart(number, name):
                arguments = json_object(text) or _NO_ARGUMENTS
                return ToolUseBlock(id=self._call_id(number), name=name or "", input=arguments)

    def _call_id(self, number: int) -> str:
        return f"toolu_{self.request_id}_{number}"


def piece_of(part: Part) -> Piece | None:
    """What a stream tells of a part; None: nothing."""
    match part:
        case TextPart(text):
            return TextPiece(text=text)
        case ReasoningPart(text):
            return ThinkingPiece(thinking=text)
        case CallPart(arguments=arguments):
            return InputPiece(partial_json=arguments) if arguments else None
