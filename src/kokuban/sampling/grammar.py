"""Makes a grammar's text into something that says, token by token, what may follow.

`GrammarCompiler` builds a `CompiledGrammar` once for each text: that is slow, and belongs to a
worker thread. Each request then begins a `Constraint` of its own from it, which is a copy of some
microseconds. A constraint depends on the output alone, so that it is made again from the output
after preemption.

The matching itself is llguidance's. What is added here: end tokens that `min_tokens` or
`ignore_eos` forbid are ruled out while anything else may follow, and numbers in JSON end.
"""

import contextlib
import threading
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from kokuban.core.errors import RequestError
from kokuban.core.request import Request
from kokuban.sampling.json_numbers import NumberRun, num_leading_digits

MAX_LEXER_STATES = 50_000
"""About 2 KB each, of each running request."""

LEXER_FUEL = 100_000
"""Nodes of regular expressions that may be worked out ahead, some 80 bytes each, held for as long
as the grammar is. With llguidance's own million `a{1000000}` holds 82 MiB, and so does each like it
that a client thinks of."""

LARGE_VOCABULARY = 100_000
"""Tokens from which on a vocabulary is worth reading before anybody waits."""

MAX_ALTERNATIVES = 10_000
"""Ways in which a text may stand in a grammar at one place."""

FAILED = "the output cannot be held to its grammar"
"""What the error of a request begins with whose grammar turns out to be too much."""

Mask = NDArray[np.uint32]
"""[W] uint32: token i may follow where bit i % 32 of word i / 32 is set."""


class Vocabulary(Protocol):
    """What is needed to know of a tokenizer."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def bos_id(self) -> int | None: ...

    @property
    def special_ids(self) -> frozenset[int]: ...

    def token_bytes(self, token_id: int) -> bytes: ...

    def encode(self, text: str, *, add_bos: bool, parse_special: bool) -> list[int]: ...


class TokenTable:
    """A vocabulary as masks and llguidance see it. Making it reads every token's bytes.

    Args:
        end_token_ids: the model's own ends; allowed where a text may end.
        num_tokens: ids from here on do not exist for the model.
    """

    def __init__(
        self, vocabulary: Vocabulary, end_token_ids: Collection[int], num_tokens: int
    ) -> None:
        # Its import takes 0.1 s, which those who ask for no grammar need not wait for.
        from llguidance import LLTokenizer

        self.bytes = [vocabulary.token_bytes(i) for i in range(num_tokens)]
        self.width = (num_tokens + 31) // 32
        ends = sorted(i for i in end_token_ids if 0 <= i < num_tokens)
        if not ends:
            raise RequestError(
                "this model names no token that ends a text, so that no output can be held to a "
                "form; leave the constraint out"
            )
        self.ends = self.mask_of(ends)
        leading = [num_leading_digits(data) for data in self.bytes]
        self._too_long = [
            self.mask_of([i for i, num in enumerate(leading) if num > room])
            for room in range(max(leading, default=0))
        ]
        special = sorted(i for i in vocabulary.special_ids if i < num_tokens)
        wrapper: Any = _Wrapper(vocabulary, self.bytes, special, ends[0])
        self.native = LLTokenizer(wrapper, n_vocab=num_tokens, eos_token=ends)

    def beyond(self, num_digits: int) -> Mask | None:
        """The tokens that begin with more digits than that; None: there is none."""
        return self._too_long[num_digits] if num_digits < len(self._too_long) else None

    def mask_of(self, token_ids: Collection[int]) -> Mask:
        """A mask that allows these tokens alone."""
        bits = np.zeros(self.width * 32, np.uint8)
        bits[[i for i in token_ids if 0 <= i < len(bits)]] = 1
        return np.packbits(bits, bitorder="little").view(np.uint32)


class _Wrapper:
    """The attributes that `LLTokenizer` looks for."""

    is_tokenizer_wrapper = True

    def __init__(
        self, vocabulary: Vocabulary, tokens: list[bytes], special: list[int], end: int
    ) -> None:
        self.eos_token_id = end
        self.bos_token_id = vocabulary.bos_id
        self.tokens = tokens
        self.special_token_ids = special
        self._vocabulary = vocabulary

        self._by_bytes: dict[bytes, int] = {}
        self._longest = 0

    def __call__(self, text: str) -> list[int]:
        """The tokens of a text that must follow: of all ways to say it this one is taken."""
        wanted = text.encode()
        ids = self._vocabulary.encode(text, add_bos=False, parse_special=False)
        known = all(token_id < len(self.tokens) for token_id in ids)
        if known and b"".join(self.tokens[token_id] for token_id in ids) == wanted:
            return ids
        # A space in front that is not its own, or a token that the model has no row for.
        return list(self._longest_first(wanted))

    def _longest_first(self, data: bytes) -> Iterator[int]:
        if not self._by_bytes:
            special = set(self.special_token_ids)
            pairs = ((each, i) for i, each in enumerate(self.tokens) if each and i not in special)
            self._by_bytes = dict(pairs)
            self._longest = max(map(len, self._by_bytes), default=0)
        while data:
            lengths = range(min(self._longest, len(data)), 0, -1)
            length = next((n for n in lengths if data[:n] in self._by_bytes), 0)
            if not length:
                return
            yield self._by_bytes[data[:length]]
            data = data[length:]


class GrammarCompiler:
    """Builds grammars for one model. Safe in several threads; lets other threads run meanwhile."""

    def __init__(
        self, vocabulary: Vocabulary, end_token_ids: Collection[int], num_tokens: int
    ) -> None:
        self._arguments = vocabulary, end_token_ids, num_tokens
        self._making = threading.Lock()
        self._table: TokenTable | None = None

    def warm_up(self) -> None:
        """Begin to read a large vocabulary on a thread of its own.

        That holds the interpreter lock in one piece, for 1 s with 262,144 tokens: better while a
        model is loaded than beside the streams of others. What takes a moment only may wait until
        somebody asks for a grammar.
        """
        if self._arguments[2] < LARGE_VOCABULARY:
            return
        threading.Thread(target=self._warm_up, name="kokuban-vocabulary", daemon=True).start()

    def _warm_up(self) -> None:
        with contextlib.suppress(RequestError):  # Told to who asks for a grammar.
            self._ready_table()

    def compile(self, source: str) -> "CompiledGrammar":
        """Build a grammar.

        Raises:
            RequestError: it cannot be built, or not within the limits; says why.
        """
        from llguidance import LLMatcher, LLParserLimits

        from kokuban.text.json_schema import keyword_of

        _check_text(source)
        table = self._ready_table()
        limits = LLParserLimits(
            initial_lexer_fuel=LEXER_FUEL,
            max_lexer_states=MAX_LEXER_STATES,
            max_items_in_row=MAX_ALTERNATIVES,
            verbose_errors=False,
        )
        matcher = LLMatcher(table.native, source, log_level=0, limits=limits)
        if not matcher.is_error():
            matcher.compute_bitmask()  # What it learns here, no copy has to find out again.
        if matcher.is_error():
            why = " ".join(matcher.get_error().split())[:500]
            keyword = keyword_of(why)
            raise RequestError(
                f"the grammar cannot be built: {keyword and f'{keyword}: '}{why}", param="grammar"
            )
        return CompiledGrammar(matcher, table, ends_numbers=_holds_json(source))

    def _ready_table(self) -> TokenTable:
        with self._making:
            if self._table is None:
                self._table = TokenTable(*self._arguments)
            return self._table


class CompiledGrammar:
    """A grammar that constraints begin from. Never changes."""

    def __init__(self, matcher: Any, table: TokenTable, *, ends_numbers: bool) -> None:
        self._matcher = matcher
        self._table = table
        self._ends_numbers = ends_numbers

    def begin(self, request: Request, output_token_ids: Sequence[int] = ()) -> "Constraint":
        """The constraint of a request that has said these tokens already."""
        numbers = NumberRun() if self._ends_numbers else None
        constraint = Constraint(self._matcher.deep_copy(), self._table, request, numbers)
        for token_id in output_token_ids:
            constraint.append(token_id)
        return constraint


class Constraint:
    """What may follow the output of one request. One thread at a time.

    Args:
        matcher: belongs to the constraint from now on.
        numbers: where the output stands among numbers; None: they may be of any length.
    """

    def __init__(
        self, matcher: Any, table: TokenTable, request: Request, numbers: NumberRun | None
    ) -> None:
        self._matcher = matcher
        self._table = table
        self._numbers = numbers
        self._position = 0
        params = request.params
        self._stays_until = 2**62 if params.ignore_eos else params.min_tokens
        """How many tokens the output has at least, if more than its end may follow."""
        self._ends = table.ends | table.mask_of(request.end_token_ids)

    @property
    def width(self) -> int:
        """Words of a mask."""
        return self._table.width

    @property
    def error(self) -> str:
        """Why nothing may follow, or nothing can be found out about it; "": there is no reason."""
        if not self._matcher.is_error():
            return ""
        why = " ".join(self._matcher.get_error().split())[:300]
        return f"{FAILED} any further: {why}"

    def append(self, token_id: int) -> None:
        """The output has grown by this token."""
        self._advance(self._matcher, self._numbers, token_id)
        self._position += 1

    def fill(self, masks: NDArray[np.uint32], drafts: Sequence[int] = ()) -> None:
        """Find what may follow the output, and what may follow each of the drafts behind it.

        After a draft that may not stand there nothing may follow.

        Args:
            masks: [1 + len(drafts), W] uint32 without gaps; written.
        """
        matcher, numbers = self._matcher, self._numbers
        if drafts:
            matcher = matcher.deep_copy()
            numbers = numbers.copy() if numbers is not None else None
        for index, mask in enumerate(masks):
            matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
            if matcher.is_error():
                masks[index:] = 0
                return
            self._narrow(mask, numbers, self._position + index)
            if index == len(drafts):
                return
            draft = drafts[index]
            if not (_allows(mask, draft) and not _allows(self._table.ends, draft)):
                masks[index + 1 :] = 0
                return
            self._advance(matcher, numbers, draft)

    def _advance(self, matcher: Any, numbers: NumberRun | None, token_id: int) -> None:
        if matcher.is_stopped():
            return  # Its end has been said, or it has failed.
        matcher.consume_token(token_id)
        if numbers is not None and token_id < len(self._table.bytes):
            numbers.feed(self._table.bytes[token_id])

    def _narrow(self, mask: Mask, numbers: NumberRun | None, position: int) -> None:
        """Take what should not follow out of a mask, as long as anything is left in it."""
        if numbers is not None and (beyond := self._table.beyond(numbers.room)) is not None:
            _take_out(mask, beyond)
        if position < self._stays_until:
            _take_out(mask, self._ends)


def _check_text(source: str) -> None:
    from kokuban.text.json_schema import MAX_CHARACTERS

    try:
        num_bytes = len(source.encode())
    except UnicodeError:
        raise RequestError(
            "the grammar holds half of a surrogate pair, which is no character", param="grammar"
        ) from None
    if num_bytes > MAX_CHARACTERS:
        raise RequestError(
            f"the grammar has {num_bytes} bytes; the limit is {MAX_CHARACTERS}: make it smaller",
            param="grammar",
        )


def _take_out(mask: Mask, tokens: Mask) -> None:
    left = mask & ~tokens
    if left.any():
        mask[:] = left


def _allows(mask: Mask, token_id: int) -> bool:
    word, bit = divmod(token_id, 32)
    return 0 <= word < len(mask) and bool(mask[word] >> np.uint32(bit) & np.uint32(1))


def _holds_json(source: str) -> bool:
    return '"json_schema":' in source or "%json" in source
