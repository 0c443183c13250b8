"""Parts what a model thinks from what it says: `<think>...</think>` at the start of an answer.

A template may open the block in the prompt, so that the answer begins inside it. Line ends next to
the marks belong to the form: templates write them again when the answer is replayed.
"""

from collections.abc import Callable
from enum import Enum, auto

from kokuban.text.held import MAX_WHITE, WHITE, end_of_words, mark_at_end

OPEN, CLOSE = "<think>", "</think>"


class Thoughts(Enum):
    """What an answer may begin with."""

    NONE = auto()
    MAY_BEGIN = auto()
    GO_ON = auto()
    """The prompt has opened the block."""


class ReasoningParser:
    """See the module.

    Args:
        think: takes pieces of what is thought.
        say: takes pieces of what follows.
        is_open: the prompt has opened the block.
    """

    def __init__(
        self, think: Callable[[str], None], say: Callable[[str], None], *, is_open: bool
    ) -> None:
        self._think = think
        self._say = say
        self._is_open = is_open
        self._step = self._start
        self._buffer = ""

    def feed(self, text: str) -> None:
        """Take a piece."""
        self._buffer += text
        while self._buffer:
            step = self._step
            step()
            if self._step == step:
                break

    def finish(self) -> None:
        """The answer has ended."""
        if self._step == self._thoughts or (self._step == self._start and self._is_open):
            self._think(self._buffer.rstrip(WHITE))
        elif self._step != self._after or self._buffer.strip(WHITE):
            self._say(self._buffer)

    def _start(self) -> None:
        """Before the first word: is it a thought?"""
        rest = self._buffer.lstrip(WHITE)
        is_far = len(self._buffer) - len(rest) > MAX_WHITE
        if rest.startswith(OPEN) and not is_far:
            self._buffer = rest.removeprefix(OPEN)
            self._step = self._first_thought
        elif is_far or (rest and not OPEN.startswith(rest)):
            self._step = self._first_thought if self._is_open else self._words

    def _first_thought(self) -> None:
        self._buffer = self._buffer.lstrip(WHITE)
        if self._buffer:
            self._step = self._thoughts

    def _thoughts(self) -> None:
        buffer = self._buffer
        close = buffer.find(CLOSE)
        if close >= 0:
            self._buffer = buffer[close + len(CLOSE) :]
            self._step = self._after
        else:
            close = len(buffer) - len(mark_at_end(buffer, CLOSE))
        end = end_of_words(buffer, 0, close)
        self._think(buffer[:end])
        if self._step == self._thoughts:
            self._buffer = buffer[end:]

    def _after(self) -> None:
        self._buffer = self._buffer.lstrip(WHITE)
        if self._buffer:
            self._step = self._words

    def _words(self) -> None:
        self._say(self._buffer)
        self._buffer = ""


def thoughts_after(prompt_end: str) -> Thoughts:
    """What a prompt that ends like this leaves to think."""
    end = prompt_end.rstrip(WHITE)
    if end.endswith(OPEN):
        return Thoughts.GO_ON
    return Thoughts.NONE if end.endswith(CLOSE) else Thoughts.MAY_BEGIN
