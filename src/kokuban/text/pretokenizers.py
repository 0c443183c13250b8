r"""How byte-level vocabularies cut text before merging, by the name that a GGUF file states.

The patterns are facts of the models (their published tokenizer.json files state the same). A rule
is a list of patterns applied one after the other: each isolates its matches in the pieces that
the one before left. `\p{…}` and look-ahead are as in Oniguruma, which the library uses.
"""

from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers

_ANY_CASE_SUFFIXES = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_MODERN_WORDS = (
    _ANY_CASE_SUFFIXES + r"|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES
)
_WORDS_WITH_MARKS = (
    _ANY_CASE_SUFFIXES
    + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|"
    + _SPACES
)
_CJK = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_ASCII_AND_WIDE_SIGNS = "[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]"
# Letters with case; the model's own list has no Latin Extended-E and no mathematical letters.
_CASED = "[\\p{Lu}\\p{Ll}\\p{Lt}&&[^\uab30-\uab6f\U0001d400-\U0001d7ff]]"


@dataclass(frozen=True, slots=True)
class SplitRule:
    """How one family cuts text."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    """A piece that is an entry of the vocabulary is taken as it is, whatever the merges say."""

    adds_bos: bool = False
    """Whether prompts begin with BOS when the file does not say so."""


_GPT2 = SplitRule((_GPT2_WORDS,))
_SINGLE_DIGITS = SplitRule((r"\p{N}", _GPT2_WORDS))
_LLAMA3 = SplitRule((_MODERN_WORDS % r"\p{N}{1,3}",), ignore_merges=True, adds_bos=True)
_LLAMA3_PLAIN = SplitRule((_MODERN_WORDS % r"\p{N}{1,3}",))
_QWEN2 = SplitRule((_MODERN_WORDS % r"\p{N}",))

DEFAULT_RULE = "default"
RULES: dict[str, SplitRule] = {
    # What files from before the key existed are read with; digits in threes, signs apart.
    DEFAULT_RULE: SplitRule((r"[\p{P}\$\+<=>\^~\|]+", _GPT2_WORDS, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "gpt-2": _GPT2,
    "gpt2": _GPT2,
    "mpt": _GPT2,
    "olmo": _GPT2,
    "phi-2": _GPT2,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "dbrx": _LLAMA3_PLAIN,
    "smaug-bpe": _LLAMA3_PLAIN,
    "qwen2": _QWEN2,
    "stablelm2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "qwen35": SplitRule((_WORDS_WITH_MARKS,)),
    "smollm": _SINGLE_DIGITS,
    "starcoder": _SINGLE_DIGITS,
    "refact": _SINGLE_DIGITS,
    "command-r": _SINGLE_DIGITS,
    "codeshell": _SINGLE_DIGITS,
    "exaone": _SINGLE_DIGITS,
    "falcon": SplitRule((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2_WORDS, r"[0-9][0-9][0-9]")),
    "deepseek-llm": SplitRule(
        (
            r"[\r\n]",
            rf"\s?{_CASED}+",
            rf"\s?{_ASCII_AND_WIDE_SIGNS}+",
            r"\s+$",
            _CJK,
            r"\p{N}+",
        )
    ),
    "deepseek-coder": SplitRule((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}")),
}
"""Rule of each `tokenizer.ggml.pre` that is known."""


def pre_tokenizer(rule: SplitRule) -> pre_tokenizers.PreTokenizer:
    """The library's object for a rule: cut, then map bytes to the printable alphabet."""
    splits: list[pre_tokenizers.PreTokenizer] = [
        pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in rule.patterns
    ]
    return pre_tokenizers.Sequence(
        [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
