"""Whether two models mean the same by the same token ids."""

from collections.abc import Sequence
from itertools import zip_longest

from kokuban.core.errors import ConfigError
from kokuban.text.tokenizer import Tokenizer


def check_same_vocabulary(
    target: Tokenizer, draft: Tokenizer, target_name: str, draft_name: str
) -> None:
    """Refuse a draft model whose tokens are others.

    Ids at the end that stand for nothing do not count: models of one family pad their matrices
    differently.

    Raises:
        ConfigError: it says what differs.
    """
    pieces, others = _used(target.pieces), _used(draft.pieces)
    if pieces == others:
        return
    if len(pieces) != len(others):
        what = f"{len(others):,} tokens, not {len(pieces):,}"
    else:
        token_id, piece, other = next(
            (i, piece, other)
            for i, (piece, other) in enumerate(zip_longest(pieces, others))
            if piece != other
        )
        what = f"{other!r} as token {token_id}, not {piece!r}"
    raise ConfigError(
        f"--speculate {draft_name} cannot guess for {target_name}: it has {what}; a draft model "
        f"must have the vocabulary of its target, as smaller models of one family have"
    )


def _used(pieces: Sequence[str | None]) -> list[str | None]:
    """Without the entries at the end that stand for nothing."""
    used = list(pieces)
    while used and used[-1] is None:
        used.pop()
    return used
