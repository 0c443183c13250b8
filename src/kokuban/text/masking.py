"""Keeps the texts of special tokens in a user's words from becoming special tokens.

A chat template mixes its own text, whose special tokens are meant, with the user's, whose are not;
once mixed they look alike. So before rendering, each special token's text in a user's text gets a
mask character after its first one: `<|im_end|>` becomes `<M|im_end|>`, which no tokenizer takes
for the token. After rendering, special tokens are found in the masked text, and what lies between
them is unmasked and encoded as ordinary text.

The mask is a letter without case of a script that nobody writes (Linear A), chosen so that it
occurs in no text of the request: templates may trim, quote, dump as JSON or change the case of
what holds it. Limit: a template that looks for a special token's text inside a message does not
find it there, and a template that builds such a text out of pieces (`"<|" ~ name ~ "|>"`) makes
a real one.
"""

import re
from collections.abc import Iterable
from typing import Any

_MASKS = tuple(chr(code) for code in range(0x10600, 0x10700))
_SINGLE_BASE = 0x10300
"""Old Italic letters: stand for special tokens of one character, which have no inside."""


class SpecialMask:
    """Masks and unmasks the texts of one vocabulary's special tokens.

    Args:
        special_texts: their texts.
    """

    def __init__(self, special_texts: Iterable[str]) -> None:
        texts = sorted(set(special_texts), key=len, reverse=True)
        self._single = {text: index for index, text in enumerate(t for t in texts if len(t) == 1)}
        self._find = self._begin = None
        if texts:
            # Any case, since a template may change it; every place where one begins, since two
            # may overlap.
            # Numbers are taken together (`<unused17>`): to mask more does no harm, and gemma has
            # thousands of them.
            escaped = (re.escape(text) for text in texts)
            numbered = dict.fromkeys(re.sub("[0-9]+", "[0-9]+", text) for text in escaped)
            alternatives = "|".join(numbered)
            self._find = re.compile(alternatives, re.IGNORECASE)
            self._begin = re.compile(f"(?=(?:{alternatives})).", re.IGNORECASE | re.DOTALL)

    def character_for(self, values: Any, source: str) -> str | None:
        """A mask for a request; None when no text of it holds a special token's.

        Args:
            values: everything that the user sent, as JSON values.
            source: the template, which must not hold the mask either.
        """
        if self._find is None or not any(map(self._find.search, _texts(values))):
            return None
        used = set(source).union(*_texts(values))
        return next(mask for mask in _MASKS if mask not in used)

    def mask(self, value: Any, character: str) -> Any:
        """A copy of a JSON value with every special token's text masked, in keys too."""
        if isinstance(value, str):
            return self._mask_text(value, character)
        if isinstance(value, dict):
            return {
                self._mask_text(key, character): self.mask(item, character)
                for key, item in value.items()
            }
        if isinstance(value, list):
            return [self.mask(item, character) for item in value]
        return value

    def unmask(self, text: str, character: str) -> str:
        """The text without its masks."""
        for single, index in self._single.items():
            text = text.replace(character + chr(_SINGLE_BASE + index), single)
        return text.replace(character, "")

    def _mask_text(self, text: str, character: str) -> str:
        if self._begin is None:
            return text
        return self._begin.sub(lambda match: self._masked(match[0], character), text)

    def _masked(self, first: str, character: str) -> str:
        index = self._single.get(first)
        return first + character if index is None else character + chr(_SINGLE_BASE + index)


def _texts(value: Any) -> Iterable[str]:
    """Every text in a JSON value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
