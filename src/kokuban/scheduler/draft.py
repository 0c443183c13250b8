"""A step while it is being planned: what it holds so far, and what is left of its budgets."""

from dataclasses import dataclass, field

from kokuban.core.config import SchedulerConfig
from kokuban.core.request import RequestId
from kokuban.core.step import Admission, BlockMove, Chunk, StepPlan
from kokuban.scheduler.state import RequestState
from kokuban.scheduler.step_target import PrefillTime


@dataclass(slots=True)
class Draft:
    """Chunks in batch order, within the token budget and the cap on its prefill part."""

    tokens_left: int
    prefill_left: int
    time: PrefillTime | None = None
    """What prompts may take of it; None without a target."""

    chunks: dict[RequestId, Chunk] = field(default_factory=dict)
    states: dict[RequestId, RequestState] = field(default_factory=dict)
    """The requests of the chunks."""

    under_way: list[RequestState] = field(default_factory=list)
    """Running requests whose prompt is not computed yet, those preempted since among them."""

    admitted: list[Admission] = field(default_factory=list)
    preempted: list[RequestId] = field(default_factory=list)

    @classmethod
    def begin(cls, config: SchedulerConfig) -> "Draft":
        cap = config.max_prefill_tokens
        return cls(config.token_budget, config.token_budget if cap is None else cap)

    @property
    def prefill_room(self) -> int:
        """Tokens that a chunk of prefill may still have, as far as tokens count."""
        if self.time is not None and not self.time.is_left:
            return 0
        return min(self.tokens_left, self.prefill_left)

    def prefill_size(self, state: RequestState) -> int:
        """Tokens that the next chunk of a request may have."""
        size = min(state.num_uncomputed, self.prefill_room)
        if self.time is not None and size:
            size = self.time.num_tokens(state.num_computed, size)
        return size

    def add(self, state: RequestState, chunk: Chunk) -> None:
        """Put in a chunk. It counts as prefill unless it only computes the token sampled last."""
        request_id = chunk.request_id
        self.chunks[request_id] = chunk
        self.states[request_id] = state
        num_tokens = len(chunk.token_ids)
        self._spend(state, num_tokens)
        if self.time is not None and not state.decodes:
            goes_on = num_tokens < state.num_uncomputed
            self.time.spend(chunk.start, num_tokens, is_last=goes_on)

    def extend(self, chunk: Chunk) -> None:
        """Put drafts behind the one token that a decoding request's chunk has so far."""
        self.chunks[chunk.request_id] = chunk
        self.tokens_left -= chunk.num_drafts

    def drop(self, state: RequestState) -> None:
        """Take out the chunk of a request that is about to be preempted, if it has one."""
        chunk = self.chunks.pop(state.id, None)
        if chunk is not None:
            del self.states[state.id]
            self._spend(state, -len(chunk.token_ids))

    def finish(
        self, step: int, ended: tuple[RequestId, ...], moves: tuple[BlockMove, ...]
    ) -> StepPlan:
        """The plan. `ended` are all rows that ended since the last one."""
        return StepPlan(
            step=step,
            chunks=tuple(self.chunks.values()),
            admitted=tuple(self.admitted),
            ended=ended,
            moves=moves,
            preempted=tuple(self.preempted),
        )

    def _spend(self, state: RequestState, num_tokens: int) -> None:
        self.tokens_left -= num_tokens
        if not state.decodes:
            self.prefill_left -= num_tokens
