"""Keeps numbers in JSON short: the grammar of JSON has no limit, and a model may never stop."""

from typing import Self

MAX_DIGITS = 60
"""Digits before the point, and digits behind it, after which no more follow where anything else
may."""

MAX_EXPONENT_DIGITS = 2
"""Likewise in the exponent: with more of them a number would be too large for a double."""

_DIGITS = frozenset(b"0123456789")
_QUOTE, _BACKSLASH = b'"\\'
_SIGNS = frozenset(b"+-")
_EXPONENT = frozenset(b"eE")


def num_leading_digits(data: bytes) -> int:
    """How many digits longer a token makes a number that stands before it."""
    return len(data) - len(data.lstrip(b"0123456789"))


class NumberRun:
    """Where in a number a JSON text ends, which comes token by token."""

    def __init__(self) -> None:
        self._num_digits = 0
        self._in_exponent = self._in_string = self._escaped = False

    @property
    def room(self) -> int:
        """How many digits may follow. In a string as many as there is need of."""
        if self._in_string:
            return MAX_DIGITS
        limit = MAX_EXPONENT_DIGITS if self._in_exponent else MAX_DIGITS
        return max(0, limit - self._num_digits)

    def copy(self) -> Self:
        """One that goes its own way from here."""
        made = type(self)()
        made._num_digits, made._in_exponent = self._num_digits, self._in_exponent
        made._in_string, made._escaped = self._in_string, self._escaped
        return made

    def feed(self, data: bytes) -> None:
        """The text goes on with these bytes."""
        for byte in data:
            if self._escaped:
                self._escaped = False
            elif byte == _QUOTE:
                self._in_string = not self._in_string
            elif self._in_string:
                self._escaped = byte == _BACKSLASH
            else:
                self._count(byte)

    def _count(self, byte: int) -> None:
        if byte in _DIGITS:
            self._num_digits += 1
            return
        begins = byte in _EXPONENT and self._num_digits > 0
        self._in_exponent = begins or (
            self._in_exponent and byte in _SIGNS and self._num_digits == 0
        )
        self._num_digits = 0
