"""The merges of a SentencePiece vocabulary, found by native code.

A vocabulary of 262,144 pieces has 1.2 million places to cut: 3 s of a start in Python, a tenth of
a second here, and the interpreter is free meanwhile. `text.gguf_tokenizer.merges_by_score` says in
Python what is found; `engine` gives this function to those who build tokenizers.
"""

from array import array
from collections.abc import Sequence

import numpy as np

from kokuban import _native


def find_merges(
    pieces: Sequence[str], usable: Sequence[bool], scores: Sequence[float]
) -> list[tuple[str, str]] | None:
    """For every usable piece, best score first, each way to cut it into two usable pieces.

    Args:
        pieces: the vocabulary.
        usable: which of them may be joined and cut, one for each.
        scores: one for each.

    Returns:
        Pairs of pieces; None where no order is meant, since two pieces are equal or a score is no
        finite number.
    """
    encoded = [piece.encode("utf-8", "surrogatepass") for piece in pieces]
    try:
        found = _native.find_merges(
            b"".join(encoded),
            np.array([len(piece) for piece in encoded], np.int32),
            np.array(usable, np.uint8),
            np.array(scores, np.float64),
        )
    except ValueError:
        return None
    numbers = iter(array("i", found))
    return [(pieces[left], pieces[right]) for left, right in zip(numbers, numbers, strict=True)]
