"""Turns token ids into text, one at a time, so that the pieces join to the whole.

A token stands for bytes, and a character may need several tokens. The state is therefore a UTF-8
decoder over the bytes of all tokens so far: bytes that may still become a character are held,
bytes that cannot become one give U+FFFD at once, so that a stream never stalls. `Tokenizer.decode`
runs the same code over all ids, which makes streamed and whole text equal by construction.

Owns: the held bytes and whether the text has begun. Asks: a `TokenTable` for bytes. One instance
for each text; ids outside the vocabulary (padding rows of an embedding) give no text.
"""

import codecs
import logging
from collections.abc import Collection
from typing import Protocol

_LOG = logging.getLogger(__name__)
_SPACE = b" "


class TokenTable(Protocol):
    """What is needed to know of a vocabulary in order to write text."""

    @property
    def bos_id(self) -> int | None: ...

    @property
    def has_space_prefix(self) -> bool: ...

    @property
    def vocab_size(self) -> int: ...

    def token_bytes(self, token_id: int) -> bytes: ...

    def is_special(self, token_id: int) -> bool: ...


class Detokenizer:
    """Text of a growing sequence of ids.

    Args:
        table: the vocabulary.
        skip_special: leave special tokens out of the text.
        continues: the ids go on from a prompt, so that a space in front of their first word is
            theirs. Without it the space that a SentencePiece vocabulary puts in front of every
            text is taken off, once.
        shown: special tokens that are text all the same.
    """

    def __init__(
        self,
        table: TokenTable,
        *,
        skip_special: bool,
        continues: bool = False,
        shown: Collection[int] = (),
    ) -> None:
        self._table = table
        self._skip_special = skip_special
        self._shown = frozenset(shown)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._strips_space = table.has_space_prefix and not continues
        self._has_warned = False

    def feed(self, token_id: int) -> str:
        """The text that is certain once this token is known; may be empty."""
        if self._skip_special and self._table.is_special(token_id) and token_id not in self._shown:
            return ""
        data = self._table.token_bytes(token_id)
        if not data:
            if not (0 <= token_id < self._table.vocab_size or self._has_warned):
                # Once for each text: a client can ask for such tokens again and again.
                self._has_warned = True
                _LOG.warning("token id %d is outside the vocabulary; it gives no text", token_id)
            return ""
        if self._strips_space and token_id != self._table.bos_id:
            # A visible beginning-of-text token does not count: the prefix stands after it.
            self._strips_space = False
            data = data.removeprefix(_SPACE)
        return self._decoder.decode(data)

    def finish(self) -> str:
        """What is left when no token follows: U+FFFD for bytes that did not become a character."""
        return self._decoder.decode(b"", final=True)
