"""Guesses that a sequence goes on as a smaller model of the same vocabulary continues it, greedily.

The drafting model has an executor, block tables and a KV pool of its own. For each request it keeps
the K and V of the sequence as far as it has seen it; before it guesses, it computes what was added
since, and forgets what it had guessed wrong:

    computed   prompt ─────────── output │ d1  d2          guessed last time: d1 d2 d3
    sequence   prompt ─────────── output   d1  x           d1 was right: go on at x

One step guesses the first token for all requests, each further one the next. What is long unseen, a
prompt for instance, is caught up in pieces, so that no step waits for a whole prompt.
"""

import logging
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field

from kokuban.core.request import BlockId, Request, RequestId
from kokuban.core.sampling_params import SamplingParams
from kokuban.core.speculation import Offer, Wanted
from kokuban.core.step import Admission, Chunk, StepPlan
from kokuban.kvcache.manager import Manager
from kokuban.runner.executor import Executor

CATCH_UP_TOKENS = 512
"""Tokens that the drafting model computes at most before it guesses, over all requests."""

_GREEDY = SamplingParams(temperature=0, max_tokens=None)

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Seen:
    """What the drafting model has of one request."""

    num_known: int = 0
    """Tokens of the sequence whose K and V are right."""

    guesses: list[int] = field(default_factory=list)
    """What was computed after them: guesses, which may be wrong."""

    in_rows: bool = False
    """Whether the executor has a row for it."""

    def settle(self, token_ids: Sequence[int]) -> None:
        """Keep those guesses that the sequence has now. Its last token is always computed again."""
        for guess in self.guesses:
            if self.num_known == len(token_ids) - 1 or token_ids[self.num_known] != guess:
                break
            self.num_known += 1
        self.guesses.clear()


class DraftModel:
    """See the module. A `core.Proposer` whose guesses cost time.

    Args:
        executor: of the drafting model; closed with this.
        manager: block tables of its pool, which nobody else uses.
        max_context_tokens: the longest sequence that it can read.
        decode_s: seconds of one of its steps: context, requests.
    """

    chances = (0.7,)

    def __init__(
        self,
        executor: Executor,
        manager: Manager,
        *,
        max_context_tokens: int,
        decode_s: Callable[[int, int], float],
    ) -> None:
        assert executor.depth == 0, "each step needs the tokens of the one before"
        self._executor = executor
        self._manager = manager
        self._max_context_tokens = max_context_tokens
        self._decode_s = decode_s
        self._seen: dict[RequestId, _Seen] = {}
        """In the order of last use."""

        self._broken: set[RequestId] = set()
        """Requests for which the drafting model failed: it is not asked again."""

        self._ended: list[RequestId] = []
        self._num_steps = 0

    def offer(self, request_id: RequestId, token_ids: Sequence[int], most: int) -> Offer:
        """See `Proposer`."""
        room = self._max_context_tokens - len(token_ids)
        if room < 1 or request_id in self._broken:
            return Offer(0)
        seen = self._seen.get(request_id)
        known = 0 if seen is None else seen.num_known + len(seen.guesses)
        return Offer(min(most, room), backlog=max(0, len(token_ids) - 1 - known))

    def propose(self, wanted: Sequence[Wanted]) -> list[tuple[int, ...]]:
        """See `Proposer`. A request that has to be caught up for longer gets nothing yet."""
        ready = self._catch_up(wanted)
        no_blocks: tuple[tuple[BlockId, ...], ...] = ((),) * self._manager.num_groups
        guesses: dict[RequestId, list[int]] = {each.request_id: [] for each in wanted}
        while ready:
            found = self._step(ready)
            ready = []
            for each in wanted:
                token = found.get(each.request_id)
                if token is None:
                    continue
                mine = guesses[each.request_id]
                mine.append(token)
                if len(mine) < each.num_tokens:
                    self._seen[each.request_id].guesses.append(token)
                    start = len(each.token_ids) + len(mine) - 1
                    ready.append(Chunk(each.request_id, start, (token,), no_blocks, samples=True))
        return [tuple(guesses[each.request_id]) for each in wanted]

    def round_s(self, num_requests: int, context_tokens: int) -> float:
        """See `Proposer`."""
        return self._decode_s(context_tokens, num_requests)

    def forget(self, request_id: RequestId) -> None:
        """See `Proposer`."""
        self._broken.discard(request_id)
        self._drop(request_id)

    def _drop(self, request_id: RequestId) -> None:
        """Give back what is held for a request; it is caught up from its start if asked for."""
        seen = self._seen.pop(request_id, None)
        if seen is not None:
            self._manager.release(request_id)
            if seen.in_rows:
                self._ended.append(request_id)

    def close(self) -> None:
        """See `Proposer`."""
        self._executor.close()

    def check(self) -> None:
        """Assert that nothing is held for requests that are gone. Linear."""
        self._manager.check()
        assert self._manager.request_ids == set(self._seen), "block tables of others"

    def _catch_up(self, wanted: Sequence[Wanted]) -> list[Chunk]:
        """Chunks for all that was added since, up to the last token of those that are then ready.

        Those that are not are computed here, as far as the limit reaches.
        """
        left = CATCH_UP_TOKENS
        busy = {each.request_id for each in wanted}
        ready: list[Chunk] = []
        late: list[Chunk] = []
        for each in wanted:
            seen = self._take_up(each)
            start, length = seen.num_known, len(each.token_ids)
            end = min(length, start + left)
            is_ready = end == length
            num_tokens = end + each.num_tokens - 1 if is_ready else end
            if end == start or not self._has_room(each.request_id, num_tokens, busy):
                continue
            blocks = self._manager.grow(each.request_id, num_tokens)
            tokens = tuple(each.token_ids[start:end])
            chunk = Chunk(each.request_id, start, tokens, blocks, samples=is_ready)
            (ready if is_ready else late).append(chunk)
            left -= end - start
            seen.num_known = end
        if late:
            self._step(late)
        return ready

    def _take_up(self, each: Wanted) -> _Seen:
        """Bring what is known of a request up to date, as the one used last."""
        seen = self._seen.pop(each.request_id, None)
        if seen is None:
            seen = _Seen()
            self._manager.begin(each.request_id)
        self._seen[each.request_id] = seen
        seen.settle(each.token_ids)
        self._manager.advance(each.request_id, seen.num_known)
        return seen

    def _has_room(self, request_id: RequestId, num_tokens: int, busy: Set[RequestId]) -> bool:
        """Whether the pool holds so much of a sequence; requests that are idle make room."""
        while not self._manager.can_grow(request_id, num_tokens):
            idle = next((known for known in self._seen if known not in busy), None)
            if idle is None:
                return False
            self._drop(idle)
        return True

    def _step(self, chunks: Sequence[Chunk]) -> dict[RequestId, int]:
        """Run a step; the token that each chunk that samples gave."""
        admitted = []
        for chunk in chunks:
            seen = self._seen[chunk.request_id]
            if not seen.in_rows:
                seen.in_rows = True
                request = Request(id=chunk.request_id, prompt_token_ids=(0,), params=_GREEDY)
                admitted.append(Admission(request))
        plan = StepPlan(
            self._num_steps, tuple(chunks), admitted=tuple(admitted), ended=tuple(self._ended)
        )
        self._num_steps += 1
        self._ended.clear()
        self._executor.submit(plan)
        outputs = self._executor.collect().outputs
        for request_id, output in outputs.items():
            if output.error is not None and request_id not in self._broken:
                _log.warning("the drafting model failed for %s: %s", request_id, output.error)
                self._broken.add(request_id)
        return {
            request_id: output.tokens[0].token_id
            for request_id, output in outputs.items()
            if output.tokens
        }
