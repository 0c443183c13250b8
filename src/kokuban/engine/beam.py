"""Beam search: keeps the sequences whose tokens are most likely together.

Each step asks for one token of every beam, as a group of requests that end at once. What a request
computed stays in the prefix cache, so that the next step finds all tokens of a beam but the newest
one, whatever beam it went on from: with the cache on and room in the pool, a step computes exactly
one token for each beam. Without, every step computes its beams from the start: slow, and the same.

Scoring. `logprob` is the sum of the logprobs of the generated tokens, an end token included, and
`score` is logprob / (number of those tokens) ** length_penalty: with 1.0 the mean, with 0.0 the
sum; above 1.0 long sequences are preferred. Of the continuations of all beams, which are equally
long, those with the highest `logprob` are taken: among the first 2 * beam_width, those that end are
put aside, and the first beam_width of the others go on. The result is the best by `score`.
"""

import math
import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from kokuban.core.errors import PromptTooLong, RequestError, StepFailed
from kokuban.core.parameters import MAX_LOGPROBS
from kokuban.core.request import FinishReason, Request, RequestId
from kokuban.core.sampling_params import SamplingParams
from kokuban.core.step import TokenLogprob
from kokuban.engine.client import EngineClient

MAX_BEAM_WIDTH = MAX_LOGPROBS // 2
"""Each beam offers twice as many continuations, so that enough are left when some of them end."""

MAX_LENGTH_PENALTY = 10


@dataclass(frozen=True, slots=True)
class Beam:
    """One continuation of the prompt."""

    token_ids: tuple[int, ...] = ()
    """The generated tokens, the end token included."""

    logprob: float = 0.0
    """Natural logarithm of their probability together."""

    finish: FinishReason | None = None
    """STOP with an end token, LENGTH at the limit; None while it goes on."""

    def score(self, length_penalty: float) -> float:
        """See the module."""
        return _score(self.logprob, max(1, len(self.token_ids)), length_penalty)


async def beam_search(
    engine: EngineClient,
    prompt_token_ids: Sequence[int],
    *,
    beam_width: int,
    max_tokens: int,
    length_penalty: float = 1.0,
    end_token_ids: Collection[int] = (),
    tenant: str = "",
    cache_scope: str = "",
) -> list[Beam]:
    """The `beam_width` best continuations that the search finds, best first.

    Args:
        engine: where the requests run.
        prompt_token_ids: at least one id, all inside the vocabulary.
        beam_width: sequences that are followed at the same time; 1 is greedy.
        max_tokens: most generated tokens; cut to the context.
        end_token_ids: tokens that end a sequence.

    Raises:
        RequestError: a number out of range, or a prompt that can never run.
        StepFailed: the engine could not finish a request.
    """
    limit = _check(engine, prompt_token_ids, beam_width, max_tokens, length_penalty)
    live, ended = [Beam()], list[Beam]()
    step = _Step(engine, tuple(prompt_token_ids), 2 * beam_width, tenant, cache_scope)
    for length in range(1, limit + 1):
        candidates = [
            _extend(beam, token, length == limit, end_token_ids)
            for beam, tokens in zip(live, await step.run(live), strict=True)
            for token in tokens
        ]
        # Ties go to the beam that was better before, then to the likelier token.
        candidates.sort(key=lambda beam: -beam.logprob)
        best = candidates[: 2 * beam_width]
        ended += [beam for beam in best if beam.finish is not None]
        ended = _best(ended, beam_width, length_penalty)
        live = [beam for beam in best if beam.finish is None][:beam_width]
        if not live or _is_settled(ended, live[0], beam_width, limit, length_penalty):
            break
    return ended


def _extend(beam: Beam, token: TokenLogprob, is_last: bool, end_token_ids: Collection[int]) -> Beam:
    finish = FinishReason.LENGTH if is_last else None
    if token.token_id in end_token_ids:
        finish = FinishReason.STOP
    return Beam((*beam.token_ids, token.token_id), beam.logprob + token.logprob, finish)


def _best(beams: Sequence[Beam], count: int, length_penalty: float) -> list[Beam]:
    return sorted(beams, key=lambda beam: -beam.score(length_penalty))[:count]


def _is_settled(
    ended: Sequence[Beam], best: Beam, beam_width: int, limit: int, length_penalty: float
) -> bool:
    """Whether nothing that goes on from the best live beam can be better than what has ended.

    Its logprob can only fall; its length helps or harms, so both ends of it are tried.
    """
    if len(ended) < beam_width:
        return False
    lengths = len(best.token_ids), limit
    reachable = max(_score(best.logprob, length, length_penalty) for length in lengths)
    return ended[-1].score(length_penalty) >= reachable


def _score(logprob: float, num_tokens: int, length_penalty: float) -> float:
    return logprob / math.pow(num_tokens, length_penalty)


def _check(
    engine: EngineClient,
    prompt_token_ids: Sequence[int],
    beam_width: int,
    max_tokens: int,
    length_penalty: float,
) -> int:
    """Refuse what cannot run.

    Returns:
        Most tokens that can be generated.
    """
    if not 1 <= beam_width <= MAX_BEAM_WIDTH:
        raise RequestError(
            f"beam_width={beam_width} is not between 1 and {MAX_BEAM_WIDTH}", param="beam_width"
        )
    if max_tokens < 1:
        raise RequestError(f"max_tokens={max_tokens} is below 1", param="max_tokens")
    if not abs(length_penalty) <= MAX_LENGTH_PENALTY:
        raise RequestError(
            f"length_penalty={length_penalty} is not between -{MAX_LENGTH_PENALTY} and "
            f"{MAX_LENGTH_PENALTY}",
            param="length_penalty",
        )
    vocab_size = engine.info.vocab_size
    for token_id in prompt_token_ids:
        if not 0 <= token_id < vocab_size:
            raise RequestError(
                f"the prompt holds token {token_id}; the ids of this model are 0 to "
                f"{vocab_size - 1}",
                param="prompt",
            )
    room = engine.info.max_context_tokens - len(prompt_token_ids)
    if room < 1:
        raise PromptTooLong(len(prompt_token_ids), engine.info.max_context_tokens)
    return min(max_tokens, room)


class _Step:
    """Asks the engine for the likeliest next tokens of some beams."""

    def __init__(
        self,
        engine: EngineClient,
        prompt_token_ids: tuple[int, ...],
        num_top: int,
        tenant: str,
        cache_scope: str,
    ) -> None:
        self._engine = engine
        self._prompt = prompt_token_ids
        self._params = SamplingParams(temperature=0, max_tokens=1, logprobs=num_top)
        self._tenant = tenant
        self._cache_scope = cache_scope
        self._name = secrets.token_hex(12)
        self._num_steps = 0

    async def run(self, beams: Sequence[Beam]) -> list[tuple[TokenLogprob, ...]]:
        """For each beam its likeliest next tokens, best first."""
        self._num_steps += 1
        requests = [
            Request(
                id=RequestId(f"{self._name}-{self._num_steps}-{index}"),
                prompt_token_ids=self._prompt + beam.token_ids,
                params=self._params,
                tenant=self._tenant,
                cache_scope=self._cache_scope,
            )
            for index, beam in enumerate(beams)
        ]
        tops: dict[RequestId, tuple[TokenLogprob, ...]] = {}
        async for event in self._engine.submit(requests):
            if event.finish in (FinishReason.ERROR, FinishReason.CANCELLED):
                raise StepFailed(event.error or "the engine could not finish a beam")
            for token in event.tokens:
                tops[event.request_id] = token.top
        return [tops[request.id] for request in requests]
