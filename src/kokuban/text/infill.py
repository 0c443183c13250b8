"""A prompt with a gap: what stands before it, what behind it, and the tokens that tell them apart.

Models that were trained to fill gaps have three tokens for it. They are known by their texts, which
are the same in every file of a family.
"""

from collections.abc import Sequence
from typing import NamedTuple

from kokuban.core.errors import RequestError
from kokuban.text.tokenizer import Tokenizer

MARKS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen2.5-Coder, CodeGemma
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, SmolLM
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek-Coder
)
"""Before the text in front of the gap, before the text behind it, and where the filling begins."""

ENDS = ("<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<|endoftext|>", "<fim_pad>", "<file_sep>")
"""What such a model says when the gap is full and it would go on with another file."""


class Infill(NamedTuple):
    """The tokens of a model that can fill gaps."""

    prefix: int
    suffix: int
    middle: int
    ends: frozenset[int]
    """Tokens that end a filling, beside the model's own."""

    def prompt(self, before: Sequence[int], after: Sequence[int]) -> list[int]:
        """Ids of the whole prompt, without a token for the beginning of the text."""
        return [self.prefix, *before, self.suffix, *after, self.middle]


def find_infill(tokenizer: Tokenizer) -> Infill:
    """The tokens of this vocabulary.

    Raises:
        RequestError: it has none; the model was not trained to fill gaps.
    """
    for marks in MARKS:
        ids = [_token(tokenizer, mark) for mark in marks]
        if None not in ids:
            prefix, suffix, middle = (each for each in ids if each is not None)
            ends = [_token(tokenizer, end) for end in ENDS]
            return Infill(prefix, suffix, middle, frozenset(e for e in ends if e is not None))
    raise RequestError(
        "suffix: this model has no tokens for filling a gap; leave it out, or serve a model that "
        "was trained for it, such as Qwen2.5-Coder",
        param="suffix",
        code="unsupported_field",
    )


def _token(tokenizer: Tokenizer, text: str) -> int | None:
    """The one token of a text; None where it takes several."""
    ids = tokenizer.encode(text, add_bos=False, parse_special=True)
    return ids[0] if len(ids) == 1 and tokenizer.piece_of(ids[0]) == text else None
