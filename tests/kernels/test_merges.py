"""Native merges of a SentencePiece vocabulary equal those of the Python that says what they are."""

import random

import pytest

from kokuban.core.errors import ModelError
from kokuban.kernels.merges import find_merges
from kokuban.text.gguf_tokenizer import TokenType, from_gguf, merges_by_score

NORMAL, OTHER = int(TokenType.NORMAL), int(TokenType.USER_DEFINED)


def native(pieces: list[str], types: list[int], scores: list[float]) -> object:
    return find_merges(pieces, [kind == NORMAL for kind in types], scores)


@pytest.mark.parametrize("alphabet", ["ab", "aé▁𝄞", "a\n\x00"])
@pytest.mark.parametrize("seed", range(5))
def test_they_are_those_of_the_definition(alphabet: str, seed: int) -> None:
    """Characters of 1 to 4 bytes, equal scores, and pieces that may not be joined."""
    draw = random.Random(seed)
    words = {"".join(draw.choices(alphabet, k=draw.randint(1, 6))) for _ in range(400)}
    pieces = sorted(words | set(alphabet))
    draw.shuffle(pieces)
    types = [NORMAL if draw.random() < 0.9 else OTHER for _ in pieces]
    scores = [float(draw.randint(-20, 0)) for _ in pieces]

    merges = merges_by_score(pieces, types, scores)

    assert len(merges) > 20
    assert native(pieces, types, scores) == merges


def test_a_piece_of_nothing_and_no_pieces_at_all_give_nothing() -> None:
    assert native([], [], []) == []
    assert native(["", "a", "aa"], [NORMAL] * 3, [0, 0, 0]) == [("a", "a")]


@pytest.mark.parametrize("score", [float("nan"), float("inf")])
def test_where_no_order_is_meant_nothing_is_found(score: float) -> None:
    assert native(["a", "b"], [NORMAL] * 2, [0, score]) is None
    assert native(["a", "a"], [NORMAL, OTHER], [0, 1]) is None


def metadata(scores: list[float]) -> dict[str, object]:
    pieces = ["<unk>", "a", "b", "ab", "ba", "aba"]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.token_type": [2, 1, 1, 1, 1, 1],
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.ggml.add_space_prefix": False,
    }


@pytest.mark.parametrize("last", [-3.0, float("nan")])
def test_a_tokenizer_is_the_same_with_them_and_without(last: float) -> None:
    """Also where the native code gives up and the definition takes over."""
    values = metadata([0, -9, -9, -2, -1, last])

    with_native = from_gguf(values, find_merges=find_merges)
    without = from_gguf(values)

    for text in ("aba", "abab", "bba", "x"):
        ids = without.encode(text, add_bos=False, parse_special=False)
        assert with_native.encode(text, add_bos=False, parse_special=False) == ids
    assert without.encode("aba", add_bos=False, parse_special=False) == [5]


def test_scores_for_other_pieces_are_refused() -> None:
    with pytest.raises(ModelError, match="scores has 2 entries for 6 tokens"):
        from_gguf(metadata([0, 1]), find_merges=find_merges)
