"""How the next token of one request is chosen, as its client asked for it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from kokuban.core.errors import RequestError
from kokuban.core.parameters import BIAS_RANGE, RANGES

MAX_STOPS = 16

_OPTIONAL = frozenset({"seed", "max_tokens", "logprobs", "prompt_logprobs"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Checked at construction; the error lists every problem at once and names the first field."""

    temperature: float = 1.0
    """0 is greedy; above 2 is refused."""

    top_k: int = 0
    """Keep the k most likely tokens. 0 or -1: all."""

    top_p: float = 1.0
    """Keep the smallest set of most likely tokens whose probabilities reach this sum; in (0, 1]."""

    min_p: float = 0.0
    """Keep tokens at least this times as likely as the most likely one; in [0, 1]."""

    repetition_penalty: float = 1.0
    """Divides (or multiplies, below 0) logits of tokens in prompt or output; in (0, 10]."""

    presence_penalty: float = 0.0
    """Subtracted once from tokens that the output holds; in [-2, 2]. The prompt does not count."""

    frequency_penalty: float = 0.0
    """Subtracted for each time the output holds the token; in [-2, 2]."""

    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Token id to a number in [-100, 100], added to its logit."""

    seed: int | None = None
    """Same seed, same text, whatever the batch. None: the engine draws one and reports it."""

    n: int = 1
    """Choices for one prompt, each with a counter of its own under the same seed."""

    max_tokens: int | None = None
    """Most new tokens. None: up to the end of the context."""

    min_tokens: int = 0
    """End and stop tokens are impossible before this many new tokens."""

    ignore_eos: bool = False
    """Go on past the model's end-of-turn tokens; `stop_token_ids` still end the text."""

    stop: tuple[str, ...] = ()
    """Strings that end the text, found in the decoded text by `text.stops`."""

    stop_token_ids: tuple[int, ...] = ()

    include_stop: bool = False
    """Whether the stop string stays in the text."""

    logprobs: int | None = None
    """How many most likely tokens to report beside the chosen one; None: no logprobs at all."""

    prompt_logprobs: int | None = None
    """The same for every prompt token after the first (echo)."""

    skip_special_tokens: bool = True

    grammar: str | None = None
    """What the output must match, as llguidance reads it: a Lark grammar, or the JSON of a list of
    grammars. None: anything."""

    def __post_init__(self) -> None:
        problems = list(self._problems())
        if problems:
            name = problems[0][0]
            raise RequestError("; ".join(text for _, text in problems), param=name)

    def _problems(self) -> Iterator[tuple[str, str]]:
        for name, limits in RANGES.items():
            value = getattr(self, name)
            if value is None and name in _OPTIONAL:
                continue
            if problem := limits.problem(name, value):
                yield name, problem
        yield from self._token_problems()
        yield from self._length_problems()
        yield from self._stop_problems()

    def _token_problems(self) -> Iterator[tuple[str, str]]:
        for token, bias in self.logit_bias.items():
            if BIAS_RANGE.problem("bias", bias):
                yield "logit_bias", f"logit_bias of token {token} is {bias}, not within -100 to 100"
        for name in ("logit_bias", "stop_token_ids"):
            for token in getattr(self, name):
                if not _is_integer(token):
                    yield name, f"{name} names {token!r}, which is no token id"

    def _length_problems(self) -> Iterator[tuple[str, str]]:
        if self.max_tokens == 0 and self.prompt_logprobs is None:
            yield "max_tokens", "max_tokens=0 asks for no token; use 1 or more, or echo the prompt"
        if (
            _is_integer(self.min_tokens)
            and isinstance(self.max_tokens, int)
            and 0 < self.max_tokens < self.min_tokens
        ):
            text = f"min_tokens={self.min_tokens} is above max_tokens={self.max_tokens}"
            yield "min_tokens", text

    def _stop_problems(self) -> Iterator[tuple[str, str]]:
        if len(self.stop) > MAX_STOPS:
            yield "stop", f"stop has {len(self.stop)} strings; the limit is {MAX_STOPS}"
        if any(not text for text in self.stop):
            yield "stop", "stop holds an empty string, which would end every text at once"


def _is_integer(value: object) -> bool:
    """True is no number of anything, whatever Python says."""
    return isinstance(value, int) and not isinstance(value, bool)
