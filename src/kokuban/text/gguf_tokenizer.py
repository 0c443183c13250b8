"""Builds a `Tokenizer` from the metadata of a GGUF file.

Claimed, with every line of the reference vectors equal: byte-level BPE (`tokenizer.ggml.model` =
"gpt2") of the families llama-bpe, qwen2, qwen35, gpt-2, mpt, smollm, starcoder, refact, falcon,
deepseek-llm and deepseek-coder; SentencePiece BPE ("llama") of llama-2, phi-3 and gemma. Other
models (wordpiece, unigram) are refused.

A GGUF file names its pre-tokenizer (`tokenizer.ggml.pre`) and nothing else says how text was cut
in training. Without the key the "default" rule is used with a warning, as files from before the
key expect; a name that is not known is refused, because wrong ids make a model worse without
anybody noticing.

Types of tokens: unknown and control tokens are special; user-defined ones are added tokens that
are found in every text; unused ones and `[PADn]` rows stand for nothing.
"""

import enum
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tokenizers
from tokenizers import AddedToken, models, normalizers

from kokuban.core.errors import ModelError
from kokuban.text.pretokenizers import DEFAULT_RULE, RULES, pre_tokenizer
from kokuban.text.tokenizer import SPIECE_SPACE, TURN_ENDS, PieceStyle, Tokenizer, TokenizerParts

_LOG = logging.getLogger(__name__)
_PREFIX = "tokenizer.ggml."

_PHI3_TURNS = ("<|user|>", "<|assistant|>", "<|end|>")


class TokenType(enum.IntEnum):
    """Values of `tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


# Plain numbers: each of 262,144 types is compared with them.
_NORMAL = int(TokenType.NORMAL)
_ORDINARY = frozenset({_NORMAL, int(TokenType.BYTE)})


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    """The arrays of the file, checked against each other."""

    tokens: list[str]
    types: list[int]
    special_ids: frozenset[int]
    user_ids: frozenset[int]
    padding_ids: frozenset[int]

    def texts(self, ids: Iterable[int]) -> list[str]:
        return [self.tokens[i] for i in sorted(ids) if self.tokens[i]]

    def pieces(self) -> list[str | None]:
        """The entry of each id; None for padding rows, which no text can mean."""
        pieces: list[str | None] = list(self.tokens)
        for token_id in self.padding_ids:
            pieces[token_id] = None
        return pieces


class _Metadata:
    """The file's tokenizer keys, with errors that name them."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def get(self, key: str) -> Any:
        return self._values.get(_PREFIX + key)

    def array(self, key: str) -> list[Any]:
        value = self.get(key)
        if value is None or isinstance(value, str | bytes):
            raise ModelError(f"the GGUF file has no list {_PREFIX}{key}; it holds no tokenizer")
        return list(value)

    def token_id(self, key: str, num_tokens: int) -> int | None:
        value = self.get(key)
        if value is None:
            return None
        if not 0 <= int(value) < num_tokens:
            raise ModelError(f"{_PREFIX}{key}={value}, but the vocabulary has {num_tokens} tokens")
        return int(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.get(key)
        return default if value is None else bool(value)


FindMerges = Callable[
    [Sequence[str], Sequence[bool], Sequence[float]], list[tuple[str, str]] | None
]
"""Pieces, which of them may be joined, and scores, to merges; None: not for these pieces."""


def from_gguf(
    metadata: Mapping[str, Any],
    *,
    end_ids: Collection[int] = frozenset(),
    find_merges: FindMerges | None = None,
) -> Tokenizer:
    """The tokenizer that a GGUF file describes.

    Args:
        metadata: key-value pairs of the file; arrays are sequences of str, int or float.
        end_ids: ids that end a turn beside those that the metadata name.
        find_merges: finds what `merges_by_score` finds, in less time.

    Raises:
        ModelError: keys are missing or contradict each other, or the kind is not supported.
    """
    values = _Metadata(metadata)
    model = values.get("model")
    vocabulary = _read_vocabulary(values)
    if model == "gpt2":
        parts = _byte_level(values, vocabulary)
        return Tokenizer(replace(parts, end_ids=parts.end_ids.union(end_ids)))
    if model == "llama":
        parts = _sentencepiece(values, vocabulary, find_merges)
        return Tokenizer(replace(parts, end_ids=parts.end_ids.union(end_ids)))
    raise ModelError(
        f"{_PREFIX}model={model!r} is not supported; supported are 'gpt2' (byte-level BPE) and "
        f"'llama' (SentencePiece BPE)"
    )


def _read_vocabulary(values: _Metadata) -> _Vocabulary:
    tokens: list[str] = values.array("tokens")
    if not tokens:
        raise ModelError(f"{_PREFIX}tokens is empty")
    kinds = values.get("token_type")
    types = [int(TokenType.NORMAL)] * len(tokens) if kinds is None else list(kinds)
    if len(types) != len(tokens):
        raise ModelError(f"{_PREFIX}token_type has {len(types)} entries for {len(tokens)} tokens")
    ends = {values.token_id(f"{name}_token_id", len(tokens)) for name in ("bos", "eos", "eot")}
    special: set[int] = {i for i in ends if i is not None}
    user: set[int] = set()
    padding: set[int] = set()
    for token_id, kind in enumerate(types):
        if kind in _ORDINARY:
            continue
        if tokens[token_id] == f"[PAD{token_id}]":
            padding.add(token_id)
        elif kind in (TokenType.CONTROL, TokenType.UNKNOWN):
            special.add(token_id)
        elif kind == TokenType.USER_DEFINED:
            user.add(token_id)
    return _Vocabulary(
        tokens, types, frozenset(special), frozenset(user - special), frozenset(padding)
    )


def _byte_level(values: _Metadata, vocabulary: _Vocabulary) -> TokenizerParts:
    name = values.get("pre")
    warnings = []
    if name is None:
        name = DEFAULT_RULE
        warnings.append(
            f"the GGUF file does not name its pre-tokenizer ({_PREFIX}pre); using {name!r}, "
            f"which may cut text otherwise than in training"
        )
    if name not in RULES:
        raise ModelError(
            f"{_PREFIX}pre={name!r} is not known, so text would be cut otherwise than in training; "
            f"known are {', '.join(sorted(RULES))}"
        )
    rule = RULES[name]
    merges = [tuple(merge.split(" ", 1)) for merge in values.array("merges")]
    model = _bpe(vocabulary.tokens, merges, ignore_merges=rule.ignore_merges)
    plain, full = tokenizers.Tokenizer(model), tokenizers.Tokenizer(model)
    for engine in (plain, full):
        engine.pre_tokenizer = pre_tokenizer(rule)
    _add_tokens(plain, full, vocabulary)
    return _parts(
        values,
        vocabulary,
        plain,
        full,
        PieceStyle.BYTE_LEVEL,
        adds_bos=rule.adds_bos,
        warnings=warnings,
    )


def _sentencepiece(
    values: _Metadata, vocabulary: _Vocabulary, find_merges: FindMerges | None
) -> TokenizerParts:
    pieces = vocabulary.tokens
    unknown = values.token_id("unknown_token_id", len(pieces))
    model = _bpe(
        pieces,
        _merges(vocabulary, values.array("scores"), find_merges),
        unk_token=None if unknown is None else pieces[unknown],
        fuse_unk=True,
        byte_fallback=True,
    )
    # phi-3 was trained with a tokenizer that takes white space off after its special tokens and
    # begins each text between them with a space; its GGUF files cannot say so.
    is_phi3 = set(_PHI3_TURNS) <= set(vocabulary.texts(vocabulary.special_ids))
    has_prefix = values.flag("add_space_prefix", default=True)
    spaces = normalizers.Replace(" ", SPIECE_SPACE)
    plain, full = tokenizers.Tokenizer(model), tokenizers.Tokenizer(model)
    for engine in (plain, full):
        engine.normalizer = (
            normalizers.Sequence([normalizers.Prepend(SPIECE_SPACE), spaces])
            if is_phi3 and has_prefix
            else spaces
        )
    _add_tokens(plain, full, vocabulary, strip_right=is_phi3)
    return _parts(
        values,
        vocabulary,
        plain,
        full,
        PieceStyle.SENTENCEPIECE,
        adds_bos=True,
        has_prefix=has_prefix,
        prefix_here=has_prefix and not is_phi3,
    )


def _merges(
    vocabulary: _Vocabulary, scores: list[float], find_merges: FindMerges | None
) -> list[tuple[str, str]]:
    pieces, types = vocabulary.tokens, vocabulary.types
    if len(scores) != len(pieces):
        raise ModelError(f"{_PREFIX}scores has {len(scores)} entries for {len(pieces)} tokens")
    found = None
    if find_merges is not None:
        usable = [kind == _NORMAL for kind in types]
        found = find_merges(pieces, usable, scores)
    return merges_by_score(pieces, types, scores) if found is None else found


def merges_by_score(
    pieces: Sequence[str], types: Sequence[int], scores: Sequence[float]
) -> list[tuple[str, str]]:
    """The merges that SentencePiece's scores stand for, first to apply first.

    SentencePiece merges the adjacent pair whose joined piece has the best score. As a list of
    merges that is: for every piece in order of score, every way to cut it into two pieces.
    Source: the Hugging Face converter does the same (slow_tokenizer convert, `generate_merges`).
    """
    ids = {
        piece: i
        for i, (piece, kind) in enumerate(zip(pieces, types, strict=True))
        if kind == TokenType.NORMAL
    }
    merges: list[tuple[str, str]] = []
    # Stable: equal scores stay in the order of ids. A vocabulary of 262,144 pieces has 1.2 million
    # places to cut, hence no more work in the loop than needed.
    for piece in sorted(ids, key=dict(zip(pieces, scores, strict=True)).__getitem__, reverse=True):
        cuts = [
            (left, right)
            for k in range(1, len(piece))
            if (left := piece[:k]) in ids and (right := piece[k:]) in ids
        ]
        if len(cuts) > 1:
            cuts.sort(key=lambda cut: ids[cut[0]])
        merges += cuts
    return merges


def _bpe(pieces: Sequence[str], merges: list[Any], **options: Any) -> models.BPE:
    try:
        return models.BPE(dict(zip(pieces, range(len(pieces)), strict=True)), merges, **options)
    except Exception as error:
        raise ModelError(f"the GGUF file's tokenizer contradicts itself: {error}") from error


def _add_tokens(
    plain: tokenizers.Tokenizer,
    full: tokenizers.Tokenizer,
    vocabulary: _Vocabulary,
    strip_right: bool = False,
) -> None:
    added = [
        AddedToken(text, normalized=False, special=False)
        for text in vocabulary.texts(vocabulary.user_ids)
    ]
    special = [
        AddedToken(text, normalized=False, special=True, rstrip=strip_right)
        for text in vocabulary.texts(vocabulary.special_ids)
    ]
    if added:
        plain.add_tokens(added)
        full.add_tokens(added)
    if special:
        full.add_special_tokens(special)


def _parts(
    values: _Metadata,
    vocabulary: _Vocabulary,
    plain: tokenizers.Tokenizer,
    full: tokenizers.Tokenizer,
    style: PieceStyle,
    *,
    adds_bos: bool,
    has_prefix: bool = False,
    prefix_here: bool = False,
    warnings: Sequence[str] = (),
) -> TokenizerParts:
    num_tokens = len(vocabulary.tokens)
    eos = values.token_id("eos_token_id", num_tokens)
    if eos is None:
        missing = f"the GGUF file names no end-of-text token ({_PREFIX}eos_token_id)"
        warnings = [*warnings, missing]
    for warning in warnings:
        _LOG.warning("%s", warning)
    named = [values.token_id(f"{name}_token_id", num_tokens) for name in ("eot", "eom")]
    known = (i for i in vocabulary.special_ids if vocabulary.tokens[i] in TURN_ENDS)
    return TokenizerParts(
        plain=plain,
        full=full,
        pieces=vocabulary.pieces(),
        style=style,
        added_ids=vocabulary.special_ids | vocabulary.user_ids,
        special_ids=vocabulary.special_ids,
        bos_id=values.token_id("bos_token_id", num_tokens),
        eos_id=eos,
        end_ids=frozenset(i for i in (eos, *named, *known) if i is not None),
        add_bos=values.flag("add_bos_token", default=adds_bos),
        has_space_prefix=has_prefix,
        prefix_here=prefix_here,
        warnings=tuple(warnings),
    )
