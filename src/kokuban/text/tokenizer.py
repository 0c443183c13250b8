"""Text to token ids and back, over the `tokenizers` library.

Two library objects share one model: `plain` knows no special token, `full` knows them all. So a
special token written in a user's text is encoded as ordinary characters unless the caller asks
for it (`parse_special=True`: raw completion prompts, and the template's own text). Added tokens
that are not special belong to the vocabulary and are found in both cases.

Bytes of a token are exact: byte-level vocabularies are mapped back to bytes, SentencePiece's ▁
is a space and <0xNN> a byte, and an added token's bytes are its own text. NUL is a character like
any other.

Immutable after construction; safe in several threads. Built by `gguf_tokenizer` and
`hf_tokenizer`.
"""

import enum
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import tokenizers

from kokuban.core.errors import RequestError
from kokuban.text.detokenizer import Detokenizer

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
SPIECE_SPACE = "▁"

TURN_ENDS = frozenset(
    {
        "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>", "<|endoftext|>",
        "<|end_of_text|>", "<|eot|>", "<|return|>", "<|call|>", "<EOT>", "<｜end▁of▁sentence｜>",
    }
)  # fmt: skip
"""Special tokens that end a turn in the families that we run, whatever the file calls EOS."""


class PieceStyle(enum.Enum):
    """How the entries of a vocabulary stand for bytes."""

    BYTE_LEVEL = "byte-level"
    """Each character of an entry is one byte, in GPT-2's printable alphabet."""

    SENTENCEPIECE = "sentencepiece"
    """UTF-8 text with ▁ for a space; <0xNN> is a byte."""

    WORDS = "words"
    """Whole words, joined by spaces; ## in front of an entry joins without one."""


def byte_alphabet() -> dict[str, int]:
    """GPT-2's printable character for each byte value, as {character: byte}.

    Printable bytes stand for themselves; the other 68 follow in order from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = sorted(set(range(256)) - set(printable))
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + index): byte for index, byte in enumerate(others)
    }


_ALPHABET = byte_alphabet()


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerParts:
    """What a builder found out about a vocabulary."""

    plain: tokenizers.Tokenizer
    """Encodes text with no special token in sight."""

    full: tokenizers.Tokenizer
    """The same with special tokens."""

    later: tokenizers.Tokenizer | None = None
    """`plain` for text that does not begin the prompt, where the library tells them apart."""

    pieces: Sequence[str | None]
    """The vocabulary's entry of each id; None for ids that stand for nothing."""

    style: PieceStyle
    added_ids: frozenset[int] = frozenset()
    """Added tokens, special or not: their text is meant as it stands."""

    special_ids: frozenset[int] = frozenset()
    bos_id: int | None = None
    eos_id: int | None = None
    end_ids: frozenset[int] = frozenset()
    """Every id that ends a turn or a text, the end-of-text id included."""

    add_bos: bool = False
    """Whether the model expects the beginning-of-text token in front of a prompt."""

    has_space_prefix: bool = False
    """Whether a text begins with a space that is not its own (SentencePiece)."""

    prefix_here: bool = False
    """Whether `Tokenizer` adds that space; else the library does."""

    warnings: tuple[str, ...] = ()
    """What the builder had to assume, for the log and for `inspect`."""


class Tokenizer:
    """See the module."""

    def __init__(self, parts: TokenizerParts) -> None:
        self._parts = parts
        self._plain = parts.plain
        self._full = parts.full
        self._later = parts.later or parts.plain
        self._special_texts = tuple(
            sorted(piece for i in parts.special_ids if (piece := parts.pieces[i]))
        )
        self._bytes: dict[int, bytes] = {}

    @property
    def pieces(self) -> Sequence[str | None]:
        """The vocabulary's entry of each id; None for ids that stand for nothing."""
        return self._parts.pieces

    @property
    def bos_id(self) -> int | None:
        return self._parts.bos_id

    @property
    def eos_id(self) -> int | None:
        return self._parts.eos_id

    @property
    def end_ids(self) -> frozenset[int]:
        """Ids that end a turn or a text, by the model's own account."""
        return self._parts.end_ids

    @property
    def special_ids(self) -> frozenset[int]:
        return self._parts.special_ids

    @property
    def special_texts(self) -> tuple[str, ...]:
        """Texts of all special tokens, sorted."""
        return self._special_texts

    @property
    def add_bos(self) -> bool:
        """Whether the model expects the beginning-of-text token in front of a prompt."""
        return self._parts.add_bos

    @property
    def has_space_prefix(self) -> bool:
        """Whether a text begins with a space that is not its own (SentencePiece)."""
        return self._parts.has_space_prefix

    @property
    def vocab_size(self) -> int:
        """Number of ids; a model may have more rows than that."""
        return len(self._parts.pieces)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What had to be assumed when the vocabulary was read, one sentence each."""
        return self._parts.warnings

    def encode(self, text: str, *, add_bos: bool, parse_special: bool) -> list[int]:
        """Ids of a text.

        Args:
            text: any text without lone surrogates.
            add_bos: put the beginning-of-text token in front, unless it stands there already.
            parse_special: read the texts of special tokens as these tokens.

        Raises:
            RequestError: the text holds a lone surrogate.
        """
        head: list[int] = []
        if parse_special:
            head, text = self._take_leading_bos(text)
        ids = head + self._encode(text, first=True, parse_special=parse_special)
        return self._with_bos(ids, parse_special) if add_bos else ids

    def encode_masked(self, text: str, unmask: Callable[[str], str], *, add_bos: bool) -> list[int]:
        """Ids of a text in which the special tokens that are not meant have been masked.

        Special tokens are found in the text as it is; the text between them is unmasked and
        then encoded without special tokens.
        """
        ids: list[int] = []
        done = 0
        encoding = _library_encode(self._full, text, with_offsets=True)
        for token_id, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            if token_id in self.special_ids:
                ids += self._segment(unmask(text[done:start]), ids)
                ids.append(token_id)
                done = end
        ids += self._segment(unmask(text[done:]), ids)
        return self._with_bos(ids, parse_special=True) if add_bos else ids

    def decode(self, ids: Iterable[int], *, skip_special: bool, continues: bool = False) -> str:
        """Text of ids; see `Detokenizer` for the arguments. Bytes that are no UTF-8 give U+FFFD."""
        stream = Detokenizer(self, skip_special=skip_special, continues=continues)
        return "".join([*(stream.feed(token_id) for token_id in ids), stream.finish()])

    def token_bytes(self, token_id: int) -> bytes:
        """Exact bytes of a token; empty for ids that stand for nothing."""
        data = self._bytes.get(token_id)
        if data is None:
            data = self._bytes[token_id] = self._piece_bytes(token_id)
        return data

    def token_text(self, token_id: int) -> str:
        """A token's bytes as text, with U+FFFD for what is no UTF-8 on its own."""
        return self.token_bytes(token_id).decode("utf-8", errors="replace")

    def is_special(self, token_id: int) -> bool:
        return token_id in self._parts.special_ids

    def id_of(self, piece: str) -> int | None:
        """Id of a vocabulary entry, written as in the vocabulary (Ġ or ▁ for a space)."""
        token_id: int | None = self._full.token_to_id(piece)
        return token_id

    def piece_of(self, token_id: int) -> str | None:
        """The vocabulary's entry of an id, or None."""
        return self._parts.pieces[token_id] if 0 <= token_id < self.vocab_size else None

    def _piece_bytes(self, token_id: int) -> bytes:
        piece = self.piece_of(token_id)
        if piece is None:
            return b""
        style = self._parts.style
        if token_id in self._parts.added_ids:
            return piece.encode("utf-8", errors="replace")
        if style is PieceStyle.WORDS:
            joined = piece[2:] if piece.startswith("##") else " " + piece
            return joined.encode("utf-8", errors="replace")
        if style is PieceStyle.BYTE_LEVEL:
            if all(character in _ALPHABET for character in piece):
                return bytes(_ALPHABET[character] for character in piece)
            return piece.encode("utf-8", errors="replace")
        if match := _BYTE_PIECE.fullmatch(piece):
            return bytes([int(match[1], 16)])
        return piece.replace(SPIECE_SPACE, " ").encode("utf-8", errors="replace")

    def _take_leading_bos(self, text: str) -> tuple[list[int], str]:
        """Split a leading BOS off, so that the space prefix stands after it, not before it."""
        bos = self.bos_id
        if not self._parts.prefix_here or bos is None:
            return [], text
        bos_text = self._parts.pieces[bos] or ""
        if not bos_text or not text.startswith(bos_text):
            return [], text
        return [bos], text[len(bos_text) :]

    def _encode(self, text: str, *, first: bool, parse_special: bool) -> list[int]:
        if self._parts.prefix_here and first and text:
            starts_special = parse_special and text.startswith(self._special_texts)
            text = text if starts_special else " " + text
        engine = self._plain if first else self._later
        ids: list[int] = _library_encode(self._full if parse_special else engine, text).ids
        return ids

    def _segment(self, text: str, before: Sequence[int]) -> list[int]:
        if not text:
            return []
        first = all(token_id == self.bos_id for token_id in before)
        return self._encode(text, first=first, parse_special=False)

    def _with_bos(self, ids: list[int], parse_special: bool) -> list[int]:
        bos = self.bos_id
        if bos is None or (parse_special and ids[:1] == [bos]):
            return ids
        return [bos, *ids]


def _library_encode(
    engine: tokenizers.Tokenizer, text: str, *, with_offsets: bool = False
) -> tokenizers.Encoding:
    """Encode a text without the model's own additions.

    A batch of one, because only the library's batch calls release the interpreter lock: a prompt
    of megabytes in a worker thread must not stop the event loop.
    """
    encode = engine.encode_batch if with_offsets else engine.encode_batch_fast
    try:
        return encode([text], add_special_tokens=False)[0]
    # TypeError is what the library says of a str that is no valid UTF-8.
    except (UnicodeError, TypeError):
        raise RequestError(
            "the text holds half of a surrogate pair, which is no character; "
            "send the whole pair or U+FFFD"
        ) from None
