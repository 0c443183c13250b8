"""Joins what the engine says (token ids) with what a client reads (text).

One call of `generate` is one prompt with n choices. Each choice has a text stream of its own, which
holds back half characters and what may become a stop string; a choice whose stop string is complete
is cancelled in the engine at once, and what it had computed beyond is neither shown nor billed.

Owns: the text state of its choices. Asks: an `EngineClient` for tokens. Never: HTTP.
"""

import secrets
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from kokuban.core.errors import RequestError
from kokuban.core.parameters import SEED_BITS
from kokuban.core.request import FinishReason, Pin, Request, RequestId
from kokuban.core.sampling_params import SamplingParams
from kokuban.core.step import SampledToken, TokenEvent, Usage
from kokuban.engine.client import EngineClient, submitted
from kokuban.sampling.state import check_vocabulary
from kokuban.text.parts import Part
from kokuban.text.stream import TextStream
from kokuban.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDelta:
    """News of one choice: at most one for each event of the engine."""

    choice: int
    text: str
    """New text that is certain. The texts of a choice join to its whole text."""

    tokens: tuple[SampledToken, ...] = ()
    """New tokens that are billed: up to and with the one that completed a stop string, or the end
    token. Their text may come in a later delta."""

    prompt_logprobs: tuple[SampledToken, ...] = ()
    finish: FinishReason | None = None
    stop_reason: str | int | None = None
    """With finish "stop": the stop string or stop token id of the request; None for the model's
    own end of text."""

    usage: Usage | None = None
    """Of this choice so far; with the first token, and when `finish` is present."""

    error: str | None = None
    embedding: bytes | None = None
    """The vector of a prompt that was pooled: see `ChunkOutput`."""

    parts: tuple[Part, ...] = ()
    """What the text says, where somebody reads it: words, thoughts, tool calls."""

    @property
    def tells_something(self) -> bool:
        """False while all that came is held back."""
        return bool(self.text or self.tokens or self.prompt_logprobs or self.finish is not None)


async def generate(
    engine: EngineClient,
    tokenizer: Tokenizer,
    prompt_token_ids: Sequence[int],
    params: SamplingParams,
    *,
    request_id: str | None = None,
    end_token_ids: Collection[int] = (),
    continues: bool = False,
    priority: int = 0,
    tenant: str = "",
    cache_scope: str = "",
    session: str = "",
    pins: Sequence[Pin] = (),
    deadline_s: float | None = None,
    shown: Collection[int] = (),
) -> AsyncGenerator[TextDelta]:
    """Generate `params.n` continuations of a prompt.

    Closing the generator cancels what is left of it in the engine.

    Args:
        engine: where the requests run.
        tokenizer: the model's.
        prompt_token_ids: at least one id, all inside the vocabulary.
        params: a seed is drawn when it has none.
        request_id: unique in the engine; drawn when None. Choice i runs as `request_id-i`.
        end_token_ids: the model's own end-of-text tokens; `params.ignore_eos` sets them aside.
        continues: the text goes on from the prompt (a raw completion, a continued message), so
            that a space in front of its first word is its own.
        priority, tenant, cache_scope, session, pins, deadline_s: see `core.Request`.
        shown: special tokens whose text is wanted even where others are skipped.

    Raises:
        Overloaded, RequestError: the engine refused the requests; none of them runs.
    """
    check_vocabulary(params, engine.info.vocab_size)
    check_token_ids(prompt_token_ids, engine.info.vocab_size)
    first = Request(
        id=RequestId(request_id or secrets.token_hex(12)),
        prompt_token_ids=tuple(prompt_token_ids),
        params=replace(params, n=1),
        end_token_ids=_ends(params, end_token_ids),
        priority=priority,
        tenant=tenant,
        cache_scope=cache_scope,
        session=session,
        pins=tuple(pins),
        deadline_s=deadline_s,
    )
    streams = [
        _Choice(each, tokenizer, continues=continues, shown=shown)
        for each in _choices(first, params.n)
    ]
    deltas = _deltas(engine, streams)
    async with aclosing(deltas):
        async for delta in deltas:
            yield delta


def _ends(params: SamplingParams, end_token_ids: Collection[int]) -> frozenset[int]:
    # A text that its grammar has brought to an end cannot go on past it.
    goes_on = params.ignore_eos and params.grammar is None
    return frozenset({*params.stop_token_ids, *(() if goes_on else end_token_ids)})


async def _deltas(engine: EngineClient, choices: "Sequence[_Choice]") -> AsyncGenerator[TextDelta]:
    """Run the choices of one prompt and turn their tokens into text."""
    open_choices = {choice.request.id: choice for choice in choices}
    async with submitted(engine, [choice.request for choice in choices]) as events:
        async for event in events:
            choice = open_choices.get(event.request_id)
            if choice is None:
                continue  # It ended at a stop string while the engine was a step ahead.
            delta = choice.take(event)
            if delta.finish is not None:
                del open_choices[event.request_id]
                if event.finish is None:
                    engine.cancel(event.request_id)
            if delta.tells_something:
                yield delta
            if not open_choices:
                return


def check_token_ids(token_ids: Sequence[int], vocab_size: int) -> None:
    """An id that the embedding has no row for must never reach a step.

    Raises:
        RequestError: names the id.
    """
    for token_id in (min(token_ids, default=0), max(token_ids, default=0)):
        if not 0 <= token_id < vocab_size:
            raise RequestError(
                f"the prompt holds token {token_id}; the ids of this model are 0 to "
                f"{vocab_size - 1}",
                param="prompt",
            )


def _choices(request: Request, n: int) -> list[Request]:
    """The request n times, under one seed, each choice with an id and a counter of its own."""
    given = request.params.seed
    seed = given if given is not None else secrets.randbits(SEED_BITS)
    params = replace(request.params, seed=seed)
    return [
        replace(
            request,
            id=RequestId(f"{request.id}-{choice}"),
            params=params,
            seed=seed,
            choice=choice,
        )
        for choice in range(n)
    ]


class _Choice:
    """Text, count and end of one continuation."""

    def __init__(
        self,
        request: Request,
        tokenizer: Tokenizer,
        *,
        continues: bool,
        shown: Collection[int],
    ) -> None:
        self.request = request
        params = request.params
        self._named_ends = frozenset(params.stop_token_ids)
        self._stream = TextStream(
            tokenizer,
            stops=params.stop,
            end_token_ids=self._named_ends,
            include_stop=params.include_stop,
            skip_special=params.skip_special_tokens,
            # A grammar speaks of every character, a space before the first word included.
            continues=continues or params.grammar is not None,
            min_tokens=params.min_tokens,
            shown=shown,
        )
        self._num_output_tokens = 0
        self._usage: Usage | None = None

    def take(self, event: TokenEvent) -> TextDelta:
        """Turn an event into text, up to the token that ends the text."""
        if event.usage is not None:
            self._usage = event.usage
        finish, reason = event.finish, None
        texts: list[str] = []
        billed: list[SampledToken] = []
        for token in event.tokens:
            billed.append(token)
            if self._is_models_own_end(token.token_id):
                finish = FinishReason.STOP
                break
            piece = self._stream.feed(token.token_id)
            texts.append(piece.text)
            if piece.stopped:
                finish = FinishReason.STOP
                reason = piece.stop if piece.stop is not None else token.token_id
                break
        self._num_output_tokens += len(billed)
        if finish is not None:
            texts.append(self._stream.finish())
        return TextDelta(
            choice=self.request.choice,
            text="".join(texts),
            tokens=tuple(billed),
            prompt_logprobs=event.prompt_logprobs,
            finish=finish,
            stop_reason=reason,
            usage=self._usage_so_far() if finish or event.usage else None,
            error=event.error,
        )

    def _is_models_own_end(self, token_id: int) -> bool:
        """Such a token never shows, also where stops of the client are to be shown."""
        return token_id in self.request.end_token_ids and token_id not in self._named_ends

    def _usage_so_far(self) -> Usage:
        """What the engine reported, with the tokens that are billed."""
        reported = self._usage or Usage(len(self.request.prompt_token_ids), 0)
        return replace(reported, output_tokens=self._num_output_tokens)
