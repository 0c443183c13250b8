"""A draft model must mean the same by the same ids."""

from collections.abc import Sequence

import pytest
import tokenizers
from tokenizers import models

from kokuban.core.errors import ConfigError
from kokuban.text.tokenizer import PieceStyle, Tokenizer, TokenizerParts
from kokuban.text.vocabulary import check_same_vocabulary


def make_tokenizer(pieces: Sequence[str | None]) -> Tokenizer:
    engine = tokenizers.Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    return Tokenizer(
        TokenizerParts(plain=engine, full=engine, pieces=pieces, style=PieceStyle.WORDS)
    )


def check(target: Sequence[str | None], draft: Sequence[str | None]) -> None:
    check_same_vocabulary(make_tokenizer(target), make_tokenizer(draft), "large", "small")


def test_equal_vocabularies_pass_whatever_pads_their_ends() -> None:
    check(["a", "b", None, "c"], ["a", "b", None, "c"])
    check(["a", "b"], ["a", "b", None, None])
    check(["a", "b", None], ["a", "b"])


def test_another_size_is_told() -> None:
    text = "--speculate small cannot guess for large: it has 3 tokens, not 2"
    with pytest.raises(ConfigError, match=text):
        check(["a", "b"], ["a", "b", "c"])


def test_the_first_token_that_differs_is_told() -> None:
    with pytest.raises(ConfigError, match="it has 'x' as token 1, not 'b'"):
        check(["a", "b", "c"], ["a", "x", "y"])
