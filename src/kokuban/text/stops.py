"""Finds stop strings in text that arrives in pieces.

The match that is complete first wins, as if the text came one character at a time; of several
that end at the same character, the longest. So the outcome does not depend on how the text is cut
into tokens. What is held back is the longest end of the text that is the beginning of a stop
string, and nothing else: text that cannot become a match is released at once.

Each stop string has a matcher of its own (Knuth, Morris and Pratt), so that a character costs a
constant time on average, whatever the lengths.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopMatch:
    """A stop string that is complete."""

    text: str
    """What comes before the match, as far as it was not released yet."""

    stop: str


class StopMatcher:
    """Looks for several stop strings in one text.

    Args:
        stops: strings, none of them empty.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        # Longest first: at the same character the longest match wins.
        self._stops = [_Pattern(stop) for stop in sorted(set(stops), key=len, reverse=True)]
        self._held = ""

    def feed(self, text: str, *, may_stop: bool = True) -> str | StopMatch:
        """Add text; returns what is released, or the match.

        Args:
            text: the next piece.
            may_stop: whether a match that ends in this piece counts.
        """
        if not self._stops:
            return text
        held = self._held + text
        before = len(self._held)
        for offset, character in enumerate(text, start=before + 1):
            complete = [p.text for p in self._stops if p.step(character)]
            if complete and may_stop:
                self._held = ""
                return StopMatch(held[: offset - len(complete[0])], complete[0])
        keep = max(pattern.matched for pattern in self._stops)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def finish(self) -> str:
        """What was held back and is now known to be no match."""
        held, self._held = self._held, ""
        return held


class _Pattern:
    """How much of one stop string the text ends with."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.matched = 0
        self._fallback = _borders(text)

    def step(self, character: str) -> bool:
        """Add a character; True when the string is complete."""
        while self.matched and self.text[self.matched] != character:
            self.matched = self._fallback[self.matched - 1]
        if self.text[self.matched] == character:
            self.matched += 1
        if self.matched < len(self.text):
            return False
        self.matched = self._fallback[-1]
        return True


def _borders(text: str) -> list[int]:
    """For each prefix, the length of its longest proper prefix that is also its suffix."""
    borders = [0] * len(text)
    length = 0
    for index in range(1, len(text)):
        while length and text[index] != text[length]:
            length = borders[length - 1]
        if text[index] == text[length]:
            length += 1
        borders[index] = length
    return borders
