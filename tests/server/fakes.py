"""A scripted engine behind the real server: no model, no thread, time moves when a test says so."""

import asyncio
import struct
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tests.fakes_text import CHATML, EOT, byte_tokenizer

from kokuban.core.errors import Overloaded, PromptTooLong, RequestError, StepFailed
from kokuban.core.request import FinishReason, Request, RequestId
from kokuban.core.session import SessionStatus
from kokuban.core.step import SampledToken, TokenEvent, TokenLogprob, Usage
from kokuban.engine.client import EngineInfo, EngineStats
from kokuban.kvcache.events import Cursor, EventLog, Replay
from kokuban.text.chat import ChatTemplate
from kokuban.text.tokenizer import Tokenizer

VOCAB = 512
FAILS = -1
"""In a chain: the engine fails the request instead of saying a token."""


class FakeEngine:
    """An `EngineClient` that says what its chain says: each token is followed by a given one.

    Args:
        chain: the last token to the next; several next ones are a branch, taken by seed, choice
            and position. A token that is not in it is followed by itself.
        max_context_tokens: prompt and output of one request.
        seats: requests that run at the same time; others wait.
        max_waiting: requests beyond it are refused.
        tokens_per_event: how many tokens come at once.
        logprobs: of each token; -0.5 for those that are not in it.
        usage: what the engine tells beside the numbers of tokens, of each choice. Tests may put
            another one into `costs` between two requests.
        log: the KV events.
    """

    def __init__(
        self,
        chain: Mapping[int, int | Sequence[int]] | None = None,
        *,
        max_context_tokens: int = 4096,
        seats: int = 1000,
        max_waiting: int = 1000,
        tokens_per_event: int = 1,
        cached_tokens: int = 0,
        logprobs: Mapping[int, float] | None = None,
        usage: Usage | None = None,
        log: EventLog | None = None,
    ) -> None:
        self.chain = dict(chain or {})
        self._logprobs = dict(logprobs or {})
        self.info = EngineInfo(
            model="m",
            vocab_size=VOCAB,
            max_context_tokens=max_context_tokens,
            block_size=16,
            num_blocks=8,
            bytes_per_token=64,
            kv_pool_bytes=8192,
            num_kv_tokens=128,
            requests_at_full_length=0,
            kv_dtype="bf16",
            threads=1,
            isa="scalar",
            token_budget=2048,
            hidden_size=4,
            prefix_cache=True,
        )
        self.submitted: list[Request] = []
        self.dead = False
        self.restarting = False
        self.said = 0
        self.resets = 0
        self.sessions: dict[tuple[str, str], SessionStatus] = {}
        self.pauses: list[tuple[str, str, float | None, tuple[str, ...]]] = []
        """Tenant, session, expected seconds and tools of every pause of a session that exists."""

        self.resumed: list[tuple[str, str]] = []

        self._seats = asyncio.Semaphore(seats)
        self._free = seats
        self._max_waiting = max_waiting
        self._per_event = tokens_per_event
        self.costs = usage or Usage(0, 0, cached_tokens=cached_tokens)
        self.log = log
        self.num_readers = 0
        self._running: set[RequestId] = set()
        self._waiting: set[RequestId] = set()
        self._go = asyncio.Event()
        self._go.set()
        self._changed = asyncio.Event()

    def turn_prefix_cache_off(self) -> None:
        self.info = replace(self.info, prefix_cache=False)

    def pause(self) -> None:
        """Compute nothing until `resume`."""
        self._go.clear()

    def resume(self) -> None:
        self._go.set()

    def die(self) -> None:
        self.dead = True
        self._go.set()

    async def until(self, *, running: int, waiting: int = 0) -> None:
        """Wait until so many requests run and wait."""
        async with asyncio.timeout(5):
            while (len(self._running), len(self._waiting)) != (running, waiting):
                self._changed.clear()
                await self._changed.wait()

    def stats(self) -> EngineStats:
        return EngineStats(
            running=len(self._running),
            waiting=len(self._waiting),
            free_blocks=8 - min(8, len(self._running)),
            num_blocks=8,
            output_tokens=self.said,
        )

    async def reset_prefix_cache(self) -> int:
        if self.dead:
            raise StepFailed("the engine has stopped")
        self.resets += 1
        return 5

    async def pause_session(
        self, tenant: str, session: str, *, expected_s: float | None, tools: Sequence[str] = ()
    ) -> SessionStatus | None:
        await self._pace()
        if self.dead:
            raise StepFailed("the engine has stopped")
        if (tenant, session) not in self.sessions:
            return None
        self.pauses.append((tenant, session, expected_s, tuple(tools)))
        return self._set_session(tenant, session, paused=True, expected_s=expected_s or 2.0)

    async def resume_session(self, tenant: str, session: str) -> SessionStatus | None:
        self.resumed.append((tenant, session))
        return self.sessions.get((tenant, session))

    async def delete_session(self, tenant: str, session: str) -> bool:
        return self.sessions.pop((tenant, session), None) is not None

    async def session_status(self, tenant: str, session: str) -> SessionStatus | None:
        return self.sessions.get((tenant, session))

    def _set_session(self, tenant: str, session: str, **changes: Any) -> SessionStatus:
        status = replace(self.sessions[tenant, session], **changes)
        self.sessions[tenant, session] = status
        return status

    async def kv_events(self, since: Cursor | None = None) -> AsyncGenerator[Replay]:
        if self.log is None:
            raise RequestError("no prefix cache", code="no_prefix_cache")
        self.log.start()
        replay = self.log.since(since or self.log.cursor)
        self.num_readers += 1
        try:
            yield replay
            while not self.dead:
                replay = self.log.since(replay.cursor)
                if replay.events or replay.is_gap:
                    yield replay
                else:
                    await asyncio.sleep(0)
        finally:
            self.num_readers -= 1

    def ready(self) -> bool:
        return not (self.dead or self.restarting)

    def alive(self) -> bool:
        return not self.dead

    def cancel(self, request_id: RequestId) -> None:
        self._running.discard(request_id)
        self._changed.set()

    async def submit(self, requests: Sequence[Request]) -> AsyncIterator[TokenEvent]:
        for request in requests:
            room = self.info.max_context_tokens - len(request.prompt_token_ids)
            if room < 0 or (room == 0 and request.pooling is None):
                raise PromptTooLong(len(request.prompt_token_ids), self.info.max_context_tokens)
        if self._seats.locked() and len(self._waiting) >= self._max_waiting:
            raise Overloaded("the waiting queue is full", retry_after_s=3)
        self.submitted += requests
        for request in requests:
            if request.session:
                status = SessionStatus(
                    id=request.session,
                    active=False,
                    paused=False,
                    num_tokens=len(request.prompt_token_ids),
                    num_blocks=-(-len(request.prompt_token_ids) // 16),
                )
                self.sessions[request.tenant, request.session] = status
        ids = {request.id for request in requests}
        try:
            self._waiting |= ids
            self._changed.set()
            async with self._seats:
                self._waiting -= ids
                self._running |= ids
                self._changed.set()
                async for event in self._speak(requests):
                    yield event
        finally:
            self._waiting -= ids
            self._running -= ids
            self._changed.set()

    async def _pace(self) -> None:
        await asyncio.sleep(0)

    async def _speak(self, requests: Sequence[Request]) -> AsyncIterator[TokenEvent]:
        voices = [
            _Voice(request, self.info.max_context_tokens, self._logprobs) for request in requests
        ]
        while voices:
            for voice in list(voices):
                await self._pace()
                await self._go.wait()
                if self.dead:
                    raise StepFailed("the engine has stopped")
                if voice.request.id not in self._running:
                    voices.remove(voice)
                    continue
                event = voice.speak(self.chain, self._per_event, self.costs)
                self.said += len(event.tokens)
                if event.finish is not None:
                    voices.remove(voice)
                    self._running.discard(voice.request.id)
                yield event


def fake_vector(prompt: Sequence[int]) -> bytes:
    """What the fake engine makes of a prompt, whatever the parameters: length, ends, a third."""
    return struct.pack("<4f", len(prompt), prompt[0], prompt[-1], 1 / 3)


@dataclass
class _Voice:
    request: Request
    max_context_tokens: int
    logprobs: Mapping[int, float] = field(default_factory=dict)
    output: list[int] = field(default_factory=list)

    def speak(
        self, chain: Mapping[int, int | Sequence[int]], num_tokens: int, costs: Usage
    ) -> TokenEvent:
        request, params = self.request, self.request.params
        if request.pooling is not None:
            return self._pool(chain, costs)
        room = self.max_context_tokens - len(request.prompt_token_ids)
        limit = room if params.max_tokens is None else min(params.max_tokens, room)
        scored = () if self.output else self._prompt_logprobs()
        tokens: list[SampledToken] = []
        finish = FinishReason.LENGTH if limit == 0 else None
        while finish is None and len(tokens) < num_tokens:
            token = self._next(chain)
            if token == FAILS:
                return TokenEvent(
                    request.id, tuple(tokens), finish=FinishReason.ERROR, error="no number"
                )
            self.output.append(token)
            tokens.append(self._sampled(token, params.logprobs))
            if token in request.end_token_ids:
                finish = FinishReason.STOP
            elif len(self.output) == limit:
                finish = FinishReason.LENGTH
        prompt = len(request.prompt_token_ids)
        is_first = len(self.output) == len(tokens)
        usage = None
        if finish or is_first:
            usage = replace(costs, prompt_tokens=prompt, output_tokens=len(self.output))
        return TokenEvent(request.id, tuple(tokens), scored, finish, usage=usage)

    def _pool(self, chain: Mapping[int, int | Sequence[int]], costs: Usage) -> TokenEvent:
        prompt = self.request.prompt_token_ids
        if chain.get(prompt[-1]) == FAILS:
            return TokenEvent(self.request.id, (), finish=FinishReason.ERROR, error="no number")
        usage = replace(costs, prompt_tokens=len(prompt), output_tokens=0)
        vector = fake_vector(prompt)
        return TokenEvent(
            self.request.id, (), finish=FinishReason.STOP, usage=usage, embedding=vector
        )

    def _next(self, chain: Mapping[int, int | Sequence[int]]) -> int:
        last = self.output[-1] if self.output else self.request.prompt_token_ids[-1]
        options = chain.get(last, last)
        if isinstance(options, int):
            return options
        draw = hash((self.request.seed, self.request.choice, len(self.output)))
        return options[draw % len(options)]

    def _sampled(self, token: int, num_top: int | None) -> SampledToken:
        top = [TokenLogprob((token + i) % VOCAB, -0.5 - i) for i in range(num_top or 0)]
        return SampledToken(token, self.logprobs.get(token, -0.5), tuple(top))

    def _prompt_logprobs(self) -> tuple[SampledToken, ...]:
        num_top = self.request.params.prompt_logprobs
        if num_top is None:
            return ()
        return tuple(self._sampled(token, num_top) for token in self.request.prompt_token_ids[1:])


@dataclass(frozen=True)
class Served:
    """What `create_app` is given."""

    client: FakeEngine
    tokenizer: Tokenizer
    chat_template: ChatTemplate
    end_token_ids: frozenset[int] = frozenset({EOT})


def served(
    chain: Mapping[int, int | Sequence[int]] | None = None,
    *,
    pieces: Sequence[str] = (),
    add_bos: bool = False,
    template: str = CHATML,
    engine: FakeEngine | None = None,
) -> Served:
    """A served model with the byte tokenizer; `pieces` are the texts of ids 262 and up."""
    tokenizer = byte_tokenizer(pieces, add_bos=add_bos)
    return Served(engine or FakeEngine(chain), tokenizer, ChatTemplate(template, tokenizer))
