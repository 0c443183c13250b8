"""What each KV dtype takes from a model's answers and gives back in memory and time.

Perplexity  of a text, in windows that do not overlap: e to the mean of -ln p over every token but
            a window's first. K and V are always read from the cache, those of the token itself too:
            a window computed at once sees what tokens computed one by one would see.
Agreement   bf16 continues prompts from the text greedily. Each dtype is then led along these
            answers: the share of places at which it would have said the same token, and how many
            tokens its own answer would have in common with bf16's before the first that differs.
Step        B requests at a context take one token each, bf16 and the dtype in turns; the ratio is
            the median over rounds. What lies in the cache is random: only its size matters here.
"""

import itertools
import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kokuban.core.config import KV_DTYPES, KvDtype
from kokuban.core.errors import ConfigError
from kokuban.engine.trial import Model, Trial
from kokuban.text.tokenizer import Tokenizer

BASE: KvDtype = "bf16"


@dataclass(frozen=True, slots=True, kw_only=True)
class KvQuantConfig:
    """How much is measured.

    Raises:
        ConfigError: a number that makes no sense.
    """

    dtypes: tuple[KvDtype, ...] = KV_DTYPES
    num_tokens: int = 4096
    """Of the text, for perplexity."""

    window: int = 512
    num_prompts: int = 8
    prompt_tokens: int = 128
    answer_tokens: int = 32
    context: int = 8192
    """Tokens in the cache of each request while steps are timed."""

    batch: int = 8
    rounds: int = 9

    def __post_init__(self) -> None:
        for dtype in self.dtypes:
            if dtype not in KV_DTYPES:
                raise ConfigError(f"kv_dtypes={dtype} is none of {', '.join(KV_DTYPES)}")
        if self.window < 3:
            raise ConfigError(f"window={self.window} is below 3: a first token cannot be scored")
        if self.num_tokens < self.window:
            raise ConfigError(f"tokens={self.num_tokens} is less than one window={self.window}")
        if self.context <= self.rounds:
            raise ConfigError(f"context={self.context} is not above rounds={self.rounds}")


@dataclass(frozen=True, slots=True, kw_only=True)
class KvFigures:
    """What was found for one dtype."""

    dtype: KvDtype
    bytes_per_token: int
    perplexity: float
    change: float
    """Of the perplexity against bf16, as a share of it."""

    change_error: float
    """Standard error of the change, over the tokens."""

    agreement: float
    """Share of the tokens of bf16's answers that this dtype would have said too, 0 to 1."""

    common_tokens: float
    """Mean over the prompts: tokens of an answer before the first that differs from bf16's."""

    step_s: float
    speedup: float
    """Step time of bf16 over that of this dtype."""


def measure(
    model: Model, text: str, config: KvQuantConfig, *, on_stage: Callable[[str], object] = str
) -> Iterator[KvFigures]:
    """The figures of bf16, then those of the other dtypes, each when it is there.

    Args:
        on_stage: told what is measured next.

    Raises:
        ConfigError: the text is shorter than a window, or the model or the memory too small.
    """
    if config.context > model.max_positions:
        raise ConfigError(
            f"context={config.context} is above the {model.max_positions} that the model was made "
            f"for; use --context {model.max_positions} or less"
        )
    windows = cut_windows(model.tokenizer, text, config)
    prompts = cut_prompts(model.tokenizer, text, config)
    on_stage("greedy answers of bf16")
    longest = config.prompt_tokens + config.answer_tokens
    base = Trial(model, BASE, num_requests=len(prompts), num_tokens=longest)
    answers = base.answer(prompts, config.answer_tokens)
    base_scores: list[float] = []
    for dtype in (BASE, *(dtype for dtype in config.dtypes if dtype != BASE)):
        trial = Trial(model, dtype, num_requests=1, num_tokens=max(config.window, longest))
        on_stage(f"perplexity with {dtype}")
        scores = _scores(trial, windows)
        base_scores = base_scores or scores
        change, change_error = _change(base_scores, scores)
        equal = [_follows(trial, *pair) for pair in zip(prompts, answers, strict=True)]
        on_stage(f"steps with {dtype}")
        step_s, speedup = _step_times(model, dtype, config)
        yield KvFigures(
            dtype=dtype,
            bytes_per_token=model.program.kv.bytes_per_token(dtype),
            perplexity=math.exp(-statistics.fmean(scores)),
            change=change,
            change_error=change_error,
            agreement=statistics.mean(itertools.chain(*equal)),
            common_tokens=statistics.mean([*each, False].index(False) for each in equal),
            step_s=step_s,
            speedup=speedup,
        )


def cut_windows(tokenizer: Tokenizer, text: str, config: KvQuantConfig) -> list[list[int]]:
    """Whole windows of the text's first tokens; each begins as the model is used to.

    Raises:
        ConfigError: there is not one.
    """
    start, ids = _encode(tokenizer, text, config.num_tokens)
    step = config.window - len(start)
    ends = range(step, len(ids) + 1, step)
    if not ends:
        raise ConfigError(
            f"the text has {len(ids)} tokens, less than one window={config.window}; use a longer "
            f"text or a smaller --window"
        )
    return [[*start, *ids[end - step : end]] for end in ends]


def cut_prompts(tokenizer: Tokenizer, text: str, config: KvQuantConfig) -> list[list[int]]:
    """Prompts from places that lie equally far apart in the same tokens."""
    start, ids = _encode(tokenizer, text, config.num_tokens)
    count = min(config.prompt_tokens - len(start), len(ids))
    last, gaps = len(ids) - count, max(1, config.num_prompts - 1)
    places = (last * i // gaps for i in range(config.num_prompts))
    return [[*start, *ids[place : place + count]] for place in places]


def _encode(tokenizer: Tokenizer, text: str, most: int) -> tuple[list[int], list[int]]:
    """What a text begins with, and the ids of its first tokens, at most so many.

    A token has about four characters: sixteen for each are enough, and a long file is cut.
    """
    start = [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []
    ids = tokenizer.encode(text[: 16 * most], add_bos=False, parse_special=False)
    return start, ids[:most]


def _scores(trial: Trial, windows: list[list[int]]) -> list[float]:
    return [token.logprob for window in windows for token in trial.score(window)]


def _change(base: list[float], scores: list[float]) -> tuple[float, float]:
    """Relative change of perplexity, and its standard error to first order."""
    differences = [before - after for before, after in zip(base, scores, strict=True)]
    ratio = math.exp(statistics.fmean(differences))
    return ratio - 1, ratio * statistics.stdev(differences) / math.sqrt(len(differences))


def _follows(trial: Trial, prompt: list[int], answer: list[int]) -> list[bool]:
    """For each token of an answer, whether this dtype would have said it after those before it."""
    scores = trial.score([*prompt, *answer])[-len(answer) :]
    return [score.top[0].token_id == token for score, token in zip(scores, answer, strict=True)]


def _step_times(model: Model, dtype: KvDtype, config: KvQuantConfig) -> tuple[float, float]:
    """Median step time, and the median over rounds of bf16's divided by it."""

    def decoder(kind: KvDtype) -> Trial:
        trial = Trial(
            model,
            kind,
            num_requests=config.batch,
            num_tokens=config.context,
            first_token=config.context - config.rounds - 1,
        )
        trial.start_anywhere()
        return trial

    base, other = decoder(BASE), decoder(dtype)
    pairs = [(base.time_step(), other.time_step()) for _ in range(config.rounds)]
    speedup = statistics.median(before / after for before, after in pairs)
    return statistics.median(after for _, after in pairs), speedup
