"""Follows one JSON value through a text that comes in pieces, and finds where it ends.

Every character is looked at once, whatever the pieces are. What a model writes wrongly and what can
mean one thing only is put right: a line end or another control character inside a string, which
JSON wants escaped.
"""

import json
import re
from enum import Enum, auto

_WHITE = " \t\r\n"
_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_SCALAR_TEXT = re.compile(r"[-+.0-9A-Za-z]+")
_SCALAR = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|true|false|null")
_ESCAPES = '"\\/bfnrt'
_HEX = "0123456789abcdefABCDEF"


class _State(Enum):
    """What comes next."""

    VALUE = auto()
    FIRST_ITEM = auto()
    """A value, or the end of a list that is empty."""

    KEY = auto()
    FIRST_KEY = auto()
    COLON = auto()
    NEXT = auto()
    """A comma, or the end of what is open."""

    STRING = auto()
    ESCAPE = auto()
    HEX = auto()
    SCALAR = auto()
    END = auto()
    BROKEN = auto()


class JsonScanner:
    """One value. Feed it until it is `done` or `broken`."""

    def __init__(self) -> None:
        self._state = _State.VALUE
        self._open: list[str] = []
        self._in_key = False
        self._scalar = ""
        self._hex_left = 0

    @property
    def done(self) -> bool:
        """The value is complete. A number is known to be by what follows it."""
        return self._state is _State.END

    @property
    def broken(self) -> bool:
        """The character where the last `feed` stopped cannot stand there."""
        return self._state is _State.BROKEN

    def feed(self, text: str, at: int = 0) -> tuple[int, str]:
        """Take what belongs to the value.

        Args:
            text: a piece of the text.
            at: where to begin in it.

        Returns:
            The index of the first character that was not taken, and what was taken as JSON has it.
        """
        taken: list[str] = []
        while at < len(text) and self._state not in (_State.END, _State.BROKEN):
            if self._state is _State.STRING:
                at = self._string(text, at, taken)
            elif self._state is _State.SCALAR:
                at = self._more_of_scalar(text, at, taken)
            else:
                self._take(text[at])
                if self._state not in (_State.BROKEN, _State.SCALAR):
                    taken.append(text[at])
                    at += 1
        return at, "".join(taken)

    def _string(self, text: str, at: int, taken: list[str]) -> int:
        if plain := _PLAIN.match(text, at):
            taken.append(plain[0])
            return plain.end()
        character = text[at]
        if character == '"':
            self._state = _State.COLON if self._in_key else self._after_value()
        elif character == "\\":
            self._state = _State.ESCAPE
        else:
            character = json.dumps(character)[1:-1]
        taken.append(character)
        return at + 1

    def _more_of_scalar(self, text: str, at: int, taken: list[str]) -> int:
        if more := _SCALAR_TEXT.match(text, at):
            self._scalar += more[0]
            taken.append(more[0])
            return more.end()
        whole = _SCALAR.fullmatch(self._scalar)
        self._state = self._after_value() if whole else _State.BROKEN
        return at

    def _take(self, character: str) -> None:
        """Move by one character outside the plain part of a string."""
        state = self._state
        if state is _State.ESCAPE:
            self._escape(character)
        elif state is _State.HEX:
            self._hex_left -= 1
            if character not in _HEX:
                self._state = _State.BROKEN
            elif self._hex_left == 0:
                self._state = _State.STRING
        elif character in _WHITE:
            pass
        elif state in (_State.VALUE, _State.FIRST_ITEM):
            self._begin_value(character)
        else:
            self._punctuation(character)

    def _escape(self, character: str) -> None:
        if character == "u":
            self._hex_left = 4
            self._state = _State.HEX
        else:
            self._state = _State.STRING if character in _ESCAPES else _State.BROKEN

    def _begin_value(self, character: str) -> None:
        if character == "{":
            self._open.append("}")
            self._state = _State.FIRST_KEY
        elif character == "[":
            self._open.append("]")
            self._state = _State.FIRST_ITEM
        elif character == '"':
            self._in_key = False
            self._state = _State.STRING
        elif character == "]" and self._state is _State.FIRST_ITEM:
            self._close()
        elif character in "-0123456789tfn":
            self._scalar = ""
            self._state = _State.SCALAR
        else:
            self._state = _State.BROKEN

    def _punctuation(self, character: str) -> None:
        state = self._state
        if state in (_State.KEY, _State.FIRST_KEY) and character == '"':
            self._in_key = True
            self._state = _State.STRING
        elif state is _State.COLON and character == ":":
            self._state = _State.VALUE
        elif state is _State.NEXT and character == ",":
            self._state = _State.KEY if self._open[-1] == "}" else _State.VALUE
        elif state in (_State.NEXT, _State.FIRST_KEY) and character == self._open[-1]:
            self._close()
        else:
            self._state = _State.BROKEN

    def _close(self) -> None:
        self._open.pop()
        self._state = self._after_value()

    def _after_value(self) -> _State:
        return _State.NEXT if self._open else _State.END
