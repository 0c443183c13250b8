"""The border between the server and the engine: one protocol, whatever the transport."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from kokuban.core.request import Request, RequestId
from kokuban.core.session import SessionStatus
from kokuban.core.step import TokenEvent
from kokuban.kvcache.events import Cursor, Replay
from kokuban.kvcache.tiers import TierStats


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """What does not change while an engine runs."""

    model: str
    """The name that the API knows it by."""

    vocab_size: int
    max_context_tokens: int
    block_size: int
    num_blocks: int
    bytes_per_token: int
    kv_pool_bytes: int
    num_kv_tokens: int
    """Tokens that the pool holds when no window gives any back."""

    requests_at_full_length: int
    """Requests of max_context_tokens that the pool holds at once."""

    kv_dtype: str
    threads: int
    isa: str
    token_budget: int
    hidden_size: int = 0
    """Numbers in a hidden state, and so in an embedding."""

    prefix_cache: bool = False
    speculate: str = ""
    """What guesses tokens ahead: "ngram" or the name of a model; "": nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """A snapshot, taken between two steps. Totals count from the engine's start."""

    running: int = 0
    waiting: int = 0
    free_blocks: int = 0
    num_blocks: int = 0
    steps: int = 0
    step_sizes: tuple[int, ...] = ()
    """Steps by their prompt tokens and the tokens that they brought: up to each of
    `core.step.STEP_SIZES`, and above."""

    step_tokens: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    preemptions: int = 0
    cached_tokens: int = 0
    forked_tokens: int = 0
    failed_requests: int = 0
    recomputed_tokens: int = 0
    drafts: int = 0
    """Times that a request had draft tokens in a step."""

    drafted_tokens: int = 0
    accepted_tokens: int = 0
    tiers: tuple[TierStats, ...] = ()
    """What lies below the pool, from the top."""

    retry_after_s: int = 0
    """Seconds after which one more request is likely to be taken; 0: now. Not exact: what has come
    since the step is not counted."""

    step_ms: float = 0.0
    """Duration of the last step."""

    restarts: int = 0
    """Times that an engine that had died was replaced. The other totals begin anew then."""


class EngineClient(Protocol):
    """What the server and `LLM` may ask. Every method is safe on the event loop's thread."""

    @property
    def info(self) -> EngineInfo: ...

    def submit(self, requests: Sequence[Request]) -> AsyncIterator[TokenEvent]:
        """Queue requests that belong together (the choices of one prompt), all or none.

        Yields their events as they come, each request's in order; ends after the last finish.
        Closing the iterator early cancels what is left.

        Raises (before the first event, when iteration begins):
            Overloaded: the queue is full, or there is no engine at the moment.
            RequestError: one of them can never run.
        """
        ...

    def cancel(self, request_id: RequestId) -> None:
        """Free a request's blocks at the next step. Unknown ids are ignored."""
        ...

    async def reset_prefix_cache(self) -> int:
        """Forget, before the next step, all KV that no running request holds.

        Returns:
            How many blocks could have been hit before.

        Raises:
            StepFailed, ShuttingDown: the engine has stopped, or is about to.
        """
        ...

    def kv_events(self, since: Cursor | None = None) -> AsyncGenerator[Replay]:
        """What the prefix cache stored and lost, as it happens; ends when the engine does.

        The first replay comes at once and may be empty: it tells where the reader stands. No later
        one is empty, and each begins where the one before it ended.

        Args:
            since: what has been read already; None: all that has happened so far.

        Raises (before the first replay):
            RequestError: the engine keeps no events, since it has no prefix cache.
            StepFailed, ShuttingDown: the engine has stopped, or is about to.
        """
        ...

    async def pause_session(
        self, tenant: str, session: str, *, expected_s: float | None, tools: Sequence[str] = ()
    ) -> SessionStatus | None:
        """Say that a session will not go on for a while, so that its KV may make room.

        Args:
            expected_s: how long; None: as long as these tools have taken before.
            tools: names of what runs meanwhile; how long they take is learned.

        Returns:
            What was decided; None if the tenant has no such session.
        """
        ...

    async def resume_session(self, tenant: str, session: str) -> SessionStatus | None:
        """Bring a paused session's KV back now; None if the tenant has no such session."""
        ...

    async def delete_session(self, tenant: str, session: str) -> bool:
        """Forget a session, and give up its KV first; whether there was one."""
        ...

    async def session_status(self, tenant: str, session: str) -> SessionStatus | None:
        """What is known of a session; None if the tenant has no such session."""
        ...

    def stats(self) -> EngineStats: ...

    def ready(self) -> bool:
        """Whether there is an engine to take a request; False also while a dead one is replaced."""
        ...

    def alive(self) -> bool:
        """False once the engine has died for good; the server then reports itself unhealthy."""
        ...


class OwnedClient(EngineClient, Protocol):
    """The client of whoever made the engine, who ends it too."""

    def close(self) -> None:
        """Stop after the step that runs now; what is unfinished gets an error event."""
        ...


@asynccontextmanager
async def submitted(
    engine: EngineClient, requests: Sequence[Request]
) -> AsyncGenerator[AsyncIterator[TokenEvent]]:
    """The events of requests; whatever is left of them is cancelled in time, not when found."""
    events = engine.submit(requests)
    try:
        yield events
    finally:
        close = getattr(events, "aclose", None)  # An iterator need not be a generator.
        if close is not None:
            await close()
