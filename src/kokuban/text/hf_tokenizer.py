"""Builds a `Tokenizer` from tokenizer.json and tokenizer_config.json.

The library reads tokenizer.json; this module finds out what the library does not tell: which
tokens are special, whether prompts begin with BOS, and how a token's bytes are written. Supported
are vocabularies that write bytes (byte-level), SentencePiece pieces, or words joined by spaces.

One difference from the library: special tokens are matched in the text as it is, never in its
normalised form, so that no normaliser can turn a user's text into one.
"""

import json
import logging
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import tokenizers
from tokenizers import AddedToken

from kokuban.core.errors import ModelError
from kokuban.text.tokenizer import SPIECE_SPACE, TURN_ENDS, PieceStyle, Tokenizer, TokenizerParts

_LOG = logging.getLogger(__name__)
MAX_IDS = 1 << 23
"""Ids that are read; the largest vocabularies in use have 2 ** 18."""

_NAMED_SPECIALS = ("bos_token", "eos_token", "pad_token", "unk_token")


def from_hf(
    tokenizer_json: str,
    config: Mapping[str, Any] | None = None,
    *,
    end_ids: Collection[int] = frozenset(),
) -> Tokenizer:
    """The tokenizer of a Hugging Face style directory.

    Args:
        tokenizer_json: content of tokenizer.json.
        config: tokenizer_config.json, parsed.
        end_ids: ids that end a turn, from generation_config.json or config.json. Empty: the
            tokenizer's own end-of-text token and the usual turn ends are taken, with a warning.

    Raises:
        ModelError: the file cannot be read, or its kind is not supported.
    """
    try:
        loaded = tokenizers.Tokenizer.from_str(tokenizer_json)
    except Exception as error:
        # The library raises nothing more special.
        raise ModelError(f"tokenizer.json cannot be read: {error}") from error
    config = config or {}
    added = _added_tokens(loaded, config)
    full, plain = _engine(loaded, added), _engine(loaded, added)
    plain.encode_special_tokens = True
    special = {i for i, token in added.items() if token.special}
    bos, eos = (_id_of(full, config.get(name)) for name in ("bos_token", "eos_token"))
    style = _style(loaded)
    warnings = () if end_ids else ("the model names no end-of-turn ids; using the tokenizer's own",)
    for warning in warnings:
        _LOG.warning("%s", warning)
    return Tokenizer(
        TokenizerParts(
            plain=plain,
            full=full,
            later=_without_first_prefix(loaded, added),
            pieces=_pieces(full),
            style=style.pieces,
            added_ids=frozenset(added),
            special_ids=frozenset(special),
            bos_id=bos,
            eos_id=eos,
            end_ids=frozenset(end_ids) or _own_ends(eos, special, added),
            add_bos=_adds_bos(loaded, config, bos),
            has_space_prefix=style.has_space_prefix,
            warnings=warnings,
        )
    )


def _added_tokens(loaded: tokenizers.Tokenizer, config: Mapping[str, Any]) -> dict[int, AddedToken]:
    """Added tokens by id; those that the configuration names as special are special."""
    named = {_text(config.get(name)) for name in _NAMED_SPECIALS}
    more = config.get("additional_special_tokens")
    named |= {_text(token) for token in more} if isinstance(more, list) else set()
    entries = config.get("added_tokens_decoder")
    for entry in entries.values() if isinstance(entries, Mapping) else ():
        if isinstance(entry, Mapping) and entry.get("special"):
            named.add(_text(entry))
    added: dict[int, AddedToken] = dict(loaded.get_added_tokens_decoder())
    present = {token.content for token in added.values()}
    for text in sorted(text for text in named if text is not None and text not in present):
        if (token_id := loaded.token_to_id(text)) is not None:
            added[token_id] = AddedToken(text, special=True, normalized=False)
    return {
        token_id: AddedToken(
            token.content,
            single_word=token.single_word,
            lstrip=token.lstrip,
            rstrip=token.rstrip,
            normalized=token.normalized and not (token.special or token.content in named),
            special=token.special or token.content in named,
        )
        for token_id, token in sorted(added.items())
    }


def _engine(loaded: tokenizers.Tokenizer, added: Mapping[int, AddedToken]) -> tokenizers.Tokenizer:
    """A tokenizer over the same model with these added tokens."""
    engine = tokenizers.Tokenizer(loaded.model)
    if loaded.normalizer is not None:
        engine.normalizer = loaded.normalizer
    if loaded.pre_tokenizer is not None:
        engine.pre_tokenizer = loaded.pre_tokenizer
    engine.add_tokens(list(added.values()))
    for token_id, token in added.items():
        if (found := engine.token_to_id(token.content)) != token_id:
            raise ModelError(
                f"tokenizer.json gives {token.content!r} the id {token_id}, but its place in the "
                f"vocabulary is {found}"
            )
    return engine


def _pieces(engine: tokenizers.Tokenizer) -> list[str | None]:
    vocabulary = engine.get_vocab(with_added_tokens=True)
    num_ids = max(vocabulary.values(), default=-1) + 1
    if num_ids > MAX_IDS:
        raise ModelError(
            f"tokenizer.json has the id {num_ids - 1}; the largest that is read is {MAX_IDS - 1}"
        )
    pieces: list[str | None] = [None] * num_ids
    for piece, token_id in vocabulary.items():
        pieces[token_id] = piece
    return pieces


def _text(token: Any) -> str | None:
    """A token of the configuration, given as text or as {"content": text}."""
    if isinstance(token, Mapping):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _id_of(engine: tokenizers.Tokenizer, token: Any) -> int | None:
    text = _text(token)
    token_id: int | None = None if text is None else engine.token_to_id(text)
    return token_id


def _own_ends(
    eos: int | None, special: Collection[int], added: Mapping[int, AddedToken]
) -> frozenset[int]:
    ends = {i for i in special if added[i].content in TURN_ENDS}
    return frozenset(ends if eos is None else ends | {eos})


def _adds_bos(loaded: tokenizers.Tokenizer, config: Mapping[str, Any], bos: int | None) -> bool:
    """tokenizer_config.json's word, else what the post-processor of tokenizer.json does."""
    if bos is None:
        return False
    stated = config.get("add_bos_token")
    if isinstance(stated, bool):
        return stated
    loaded.no_truncation()
    loaded.no_padding()
    ids: list[int] = loaded.encode("a", add_special_tokens=True).ids
    return ids[:1] == [bos]


@dataclass(frozen=True, slots=True)
class _Style:
    pieces: PieceStyle
    has_space_prefix: bool


def _steps(component: Any) -> Iterator[dict[str, Any]]:
    """The steps of a library component, sequences unfolded, as the JSON says them."""
    if component is not None:
        yield from _unfold(json.loads(component.__getstate__()))


def _unfold(step: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for key in ("decoders", "pretokenizers"):
        if step.get("type") == "Sequence" and key in step:
            for inner in step[key]:
                yield from _unfold(inner)
            return
    yield step


def _style(loaded: tokenizers.Tokenizer) -> _Style:
    decoder = list(_steps(loaded.decoder))
    kinds = {step["type"] for step in decoder}
    cuts = {step["type"] for step in _steps(loaded.pre_tokenizer)}
    if "ByteLevel" in kinds | cuts:
        return _Style(PieceStyle.BYTE_LEVEL, has_space_prefix=False)
    if any(_writes_spaces(step) for step in decoder):
        return _Style(PieceStyle.SENTENCEPIECE, any(_strips_prefix(step) for step in decoder))
    if kinds <= {"WordPiece"}:
        return _Style(PieceStyle.WORDS, has_space_prefix=True)
    raise ModelError(
        f"tokenizer.json's decoder ({', '.join(sorted(kinds))}) is not supported; supported are "
        f"ByteLevel, SentencePiece's (Metaspace, or Replace of {SPIECE_SPACE}) and WordPiece"
    )


def _writes_spaces(step: Mapping[str, Any]) -> bool:
    """Whether a decoder step turns ▁ into a space."""
    if step["type"] == "Replace":
        return bool(step.get("pattern") == {"String": SPIECE_SPACE})
    return bool(step["type"] == "Metaspace")


def _strips_prefix(step: Mapping[str, Any]) -> bool:
    """Whether a decoder step takes the space in front of the text off."""
    if step["type"] == "Metaspace":
        return bool(step.get("prepend_scheme", "always") != "never")
    return bool(step["type"] == "Strip" and step.get("start", 0) > 0)


def _without_first_prefix(
    loaded: tokenizers.Tokenizer, added: Mapping[int, AddedToken]
) -> tokenizers.Tokenizer | None:
    """For text after the first special token, where only the first text gets a space prefix."""
    if loaded.pre_tokenizer is None:
        return None
    state = loaded.pre_tokenizer.__getstate__()
    if b'"prepend_scheme":"first"' not in state:
        return None
    changed = loaded.pre_tokenizer
    changed.__setstate__(state.replace(b'"prepend_scheme":"first"', b'"prepend_scheme":"never"'))
    engine = _engine(loaded, added)
    engine.pre_tokenizer = changed
    engine.encode_special_tokens = True
    return engine
