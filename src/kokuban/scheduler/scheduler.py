"""Decides which tokens each request computes in the next step.

The scheduler knows no prefill phase and no decode phase. A request has tokens, and some of them
are computed; a step moves the second number towards the first, by at most `token_budget` tokens
over all requests. Chunked prefill, recomputation and decoding are the same move.

Owns: the waiting queue, the running list and the progress of every request in them.
Asks: `kvcache.Manager` for blocks. Never touches a tensor, a clock, a socket or a random number,
so that one sequence of calls gives one sequence of plans; `tests/unit/scheduler` rests on that.

    engine thread:   add, cancel ─▶ expire ─▶ plan ─▶ (runner) ─▶ commit ─▶ events
"""

from collections.abc import Sequence
from dataclasses import replace

from kokuban.core.config import SchedulerConfig
from kokuban.core.errors import RequestError
from kokuban.core.request import FinishReason, Request, RequestId
from kokuban.core.speculation import Proposer
from kokuban.core.step import Chunk, ChunkOutput, SampledToken, StepPlan, StepResult, TokenEvent
from kokuban.kvcache.manager import Manager
from kokuban.scheduler.fairness import TenantShares
from kokuban.scheduler.limits import Limits
from kokuban.scheduler.pace import Pace
from kokuban.scheduler.pins import Pins
from kokuban.scheduler.planner import Planner
from kokuban.scheduler.prefixes import Prefixes
from kokuban.scheduler.prices import FreeMoves, Prices
from kokuban.scheduler.queue import WaitingQueue
from kokuban.scheduler.running import RunningList
from kokuban.scheduler.sessions import Sessions
from kokuban.scheduler.siblings import SiblingForks
from kokuban.scheduler.speculate import make_speculator
from kokuban.scheduler.state import RequestState
from kokuban.scheduler.step_target import StepTarget
from kokuban.scheduler.totals import SchedulerStats, Totals

_NO_OUTPUT = ChunkOutput()

STORES_A_STEP = 32
"""Blocks that are copied down beside a step's work: some milliseconds at most."""

STORES_WHEN_IDLE = 256
"""The same when there is no work: a request that comes meanwhile waits so long."""


class Scheduler:
    """See the module. Single caller: the engine thread.

    Args:
        config: limits of a step and of the queue.
        manager: block tables of a pool that nobody else uses.
        max_context_tokens: prompt and output of one request together, as the model allows.
        prices: of computing tokens again and of moving blocks.
        proposer: guesses tokens ahead; None: every token costs a step of its own.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        manager: Manager,
        *,
        max_context_tokens: int,
        prices: Prices | None = None,
        proposer: Proposer | None = None,
    ) -> None:
        self._config = config
        self._manager = manager
        self._limits = Limits(config, _most_tokens(manager, max_context_tokens))
        self._requests: dict[RequestId, RequestState] = {}
        self._shares = TenantShares()
        self._queue = WaitingQueue(self._shares)
        self._running = RunningList()
        self._pace = Pace()
        self._prices = prices
        prices = prices or FreeMoves()
        self._prefixes = Prefixes(manager, prices)
        self._pins = Pins(manager.keeper, int(config.pin_share * manager.num_blocks))
        self.sessions = Sessions(manager, prices, self._pins)
        self._target = StepTarget.of(config, prices.recompute_s)
        self._siblings = SiblingForks(self._queue, manager, self._prefixes)
        self._speculator = make_speculator(proposer, manager, config.block_size, prices)
        self._planner = Planner(
            config, manager, self._queue, self._siblings, self._running, self._shares,
            self._pace, self._prefixes, self._target,
        )  # fmt: skip
        self.max_queue_wait_s = config.max_queue_wait_s
        self.suspended = self._planner.suspended
        self._in_flight: dict[RequestId, RequestState] | None = None
        self._ended_rows: list[RequestId] = []
        self._num_added = 0
        self._totals = Totals()

    @property
    def max_context_tokens(self) -> int:
        """Prompt and output of one request together: the least of model, options and pool."""
        return self._limits.max_context_tokens

    @property
    def has_requests(self) -> bool:
        """Whether anything runs or waits, so that `plan` would have something to do."""
        return bool(self._requests)

    @property
    def has_work(self) -> bool:
        """Whether `plan` would have something to do: requests, or blocks to be copied down."""
        below = self._manager.below
        return bool(self._requests) or (below is not None and below.has_stores)

    @property
    def next_due_s(self) -> float | None:
        """When `plan` will have something to do although nobody asks for anything."""
        return self.sessions.next_due_s

    def forget_cached(self) -> int:
        """Forget all KV that no running request holds; returns how many blocks had some."""
        self.sessions.clear()
        self._pins.clear()
        return self._manager.forget_free()

    def stats(self) -> SchedulerStats:
        """Counts of now, and totals."""
        running, waiting = len(self._running), len(self._queue)
        retry_after_s = self._limits.retry_after_s(running, waiting, self._pace)
        return SchedulerStats(running, waiting, replace(self._totals), retry_after_s)

    def add(self, request: Request, now_s: float) -> None:
        """Append a request to the waiting queue; see `add_group` for errors."""
        self.add_group((request,), now_s)

    def add_group(self, requests: Sequence[Request], now_s: float) -> None:
        """Append requests that belong together, all or none.

        Those with the prompt, tenant, scope and priority of the first compute that prompt once.
        `max_tokens` is cut to what the context allows: such a request ends with LENGTH.

        Raises (nothing has changed then):
            PromptTooLong: a prompt leaves no room for a new token in context or pool.
            RequestError: an empty prompt, an id in use, more requests than the queue can hold.
            Overloaded: the queue has no room for all of them now.
        """
        limits = [self._limits.max_output_tokens(request) for request in requests]
        self._check_ids(requests)
        self._check_room(requests)
        states = []
        for request, max_output_tokens in zip(requests, limits, strict=True):
            chain = self._manager.make_chain(request.tenant, request.cache_scope)
            state = RequestState(request, self._num_added, max_output_tokens, chain)
            self._num_added += 1
            self._requests[request.id] = state
            self._shares.arrive(request.tenant)
            states.append(state)
            if request.session:
                self.sessions.arrived(state, now_s)
        if states:
            self._siblings.push(states)

    def cancel(self, request_id: RequestId) -> bool:
        """Forget a request, waiting or running, and free its blocks; no event tells of it.

        Returns:
            Whether there was such a request. Not so is no error: it may just have ended.
        """
        state = self._requests.get(request_id)
        if state is None:
            return False
        self._remove(state)
        return True

    def cancel_all(self) -> None:
        """Forget every request; no event tells of it."""
        for request_id in tuple(self._requests):
            self.cancel(request_id)

    def expire(self, now_s: float) -> list[TokenEvent]:
        """End the requests that waited past their deadline, each with an error event.

        To be called before `plan`. A request that has begun, even if it was preempted since, has
        met its deadline.
        """
        events = []
        for state in self._queue.take_expired(now_s):
            if self._siblings.has_begun(state):
                continue
            request = state.request
            assert request.deadline_s is not None, "a request without a deadline expired"
            text = (
                f"the request waited {now_s - request.arrival_s:.3f} s, and its deadline was "
                f"{request.deadline_s - request.arrival_s:.3f} s after its arrival; allow more "
                f"time or try when fewer wait"
            )
            retry_after_s = self._pace.retry_after_s(1 + len(self._queue))
            events.append(self._fail(state, text, now_s)._replace(retry_after_s=retry_after_s))
            self._totals.failed_requests -= 1
        return events

    def plan(self, now_s: float) -> StepPlan | None:
        """Choose the next step and hold the blocks that it writes.

        Returns:
            A plan in which the chunks' token counts add up to `token_budget` at most, and no
            request occurs twice; without chunks it only moves blocks. None if there is nothing to
            do, or nothing until the disk has answered.
        """
        assert self._in_flight is None, "the step before has not been committed"
        if self._manager.below is not None:
            self._manager.below.poll()
        self._pins.expire(now_s)
        draft = self._planner.plan(now_s)
        self.sessions.tick(now_s, lambda: self._planner.num_spare_blocks)
        if self._speculator is not None:
            self._speculator.extend(draft, self._planner.num_spare_blocks, now_s)
        self._ended_rows += draft.preempted
        self._totals.preemptions += len(draft.preempted)
        moves = self._manager.take_moves(STORES_A_STEP if draft.chunks else STORES_WHEN_IDLE)
        if not draft.chunks and not moves:
            return None
        for admission in draft.admitted:
            state = self._requests[admission.request.id]
            if admission.request.session:
                origin = self.sessions.begun(state, num_cached=state.cached_tokens)
                state.resumed_from = origin or state.resumed_from
            if state.num_preemptions == 0:
                self._totals.prompt_tokens += state.num_prompt - state.forked_tokens
                self._totals.forked_tokens += state.forked_tokens
                if not state.forked_tokens:
                    self._totals.cached_tokens += state.cached_tokens
        plan = draft.finish(self._totals.steps, tuple(self._ended_rows), moves)
        self._totals.steps += 1
        self._ended_rows.clear()
        self._in_flight = draft.states
        return plan

    def commit(self, plan: StepPlan, result: StepResult, now_s: float) -> list[TokenEvent]:
        """Record what the planned step computed.

        Appends sampled tokens, publishes blocks that became full and frees the blocks of requests
        that ended. A request cancelled since `plan` is dropped without an event.

        Returns:
            One event for each request that has new tokens or scores, or that ended; batch order.
        """
        states = self._in_flight
        assert states is not None, "no step is in flight"
        assert plan.step == result.step == self._totals.steps - 1, "another step is in flight"
        self._in_flight = None
        if self._speculator is not None:
            self._speculator.time(plan, now_s)
        self._manager.commit_moves(plan.moves)
        if self._target is not None and plan.chunks:
            self._target.end(now_s)
        events = []
        for chunk in plan.chunks:
            state = states[chunk.request_id]
            if self._requests.get(state.id) is state:
                output = result.outputs.get(state.id, _NO_OUTPUT)
                event = self._commit_chunk(state, chunk, output, now_s)
                if event is not None:
                    events.append(event)
        self._totals.count_tokens(plan, states, events)
        return events

    def check(self) -> None:
        """Assert every invariant, those of manager and pool too. Linear; between two steps."""
        self._manager.check()
        self._queue.check()
        self.sessions.check()
        running = list(self._running)
        assert all(state.running for state in running), "a request in the running list waits"
        assert [s.rank for s in running] == sorted(s.rank for s in running), "running: order"
        assert len(running) <= self._config.max_running_requests, "too many requests run"
        assert len(running) + len(self._queue) == len(self._requests), "a request is lost"
        holders = {state.id for state in running} | self._siblings.ended_ids
        assert holders == self._manager.request_ids, "block tables of others"
        self._siblings.check()

    def _check_room(self, requests: Sequence[Request]) -> None:
        def guess_s() -> float:
            if self._prices is None:
                return 0.0
            return self._prices.recompute_s(0, max(len(r.prompt_token_ids) for r in requests))

        num_running, num_waiting = len(self._running), len(self._queue)
        self._limits.check_room(len(requests), num_running, num_waiting, self._pace, guess_s)

    def _check_ids(self, requests: Sequence[Request]) -> None:
        ids: set[RequestId] = set()
        for request in requests:
            if request.id in self._requests or request.id in ids:
                raise RequestError(
                    f"the request id {request.id!r} is in use; send another one or wait for its end"
                )
            ids.add(request.id)

    def _commit_chunk(
        self, state: RequestState, chunk: Chunk, output: ChunkOutput, now_s: float
    ) -> TokenEvent | None:
        if output.error is not None:
            return self._fail(state, output.error, now_s)
        assert bool(output.tokens) == chunk.samples, (
            f"step {self._totals.steps - 1} has {len(output.tokens)} tokens for request "
            f"{state.id}, whose chunk {'samples' if chunk.samples else 'does not sample'}"
        )
        totals = self._totals
        is_new = state.num_output == 0  # Only then may others fork from it.
        scores: tuple[SampledToken, ...] = ()
        if chunk.num_drafts:
            tokens, finish = self._accept_drafts(state, chunk, output.tokens, now_s)
        else:
            self._advance(state, len(chunk.token_ids), is_new=is_new)
            scores = state.new_scores(chunk.start, output.prompt_logprobs)
            if is_new:
                self._siblings.advance(state, scores)
            tokens, finish = state.accept(output.tokens, now_s)
        if not tokens and state.max_output_tokens == 0 and state.num_uncomputed == 0:
            finish = FinishReason.LENGTH if state.request.pooling is None else FinishReason.STOP
        totals.output_tokens += len(tokens)
        self._shares.charge(state.request.tenant, output_tokens=len(tokens))
        usage = None
        if tokens and is_new:
            # Who ends a request early, at a stop string, sees no last event: this is the receipt.
            usage = state.receipt()
        if finish is not None:
            usage = state.finish(now_s)
            self._remove(state)
            self._pin(state, now_s)
        elif not tokens and not scores:
            return None
        return TokenEvent(state.id, tokens, scores, finish, usage=usage, embedding=output.embedding)

    def _accept_drafts(
        self, state: RequestState, chunk: Chunk, found: tuple[SampledToken, ...], now_s: float
    ) -> tuple[tuple[SampledToken, ...], FinishReason | None]:
        """Take what a chunk with drafts brought. The last token of all is not computed, as ever."""
        assert self._speculator is not None, "drafts from nowhere"
        self._speculator.note(chunk, len(found) - 1)
        tokens, finish = state.accept(found, now_s)
        self._advance(state, len(tokens))
        self._manager.trim(state.id)
        num_accepted = min(len(tokens), len(found) - 1)
        state.drafted_tokens += chunk.num_drafts
        state.accepted_tokens += num_accepted
        self._totals.count_drafts(chunk.num_drafts, num_accepted)
        return tokens, finish

    def _advance(self, state: RequestState, num_tokens: int, *, is_new: bool = False) -> None:
        """Count tokens as computed, here and in the cache."""
        self._totals.recomputed_tokens += state.advance(num_tokens)
        fork_at = self._siblings.kept_from(state) if is_new else None
        self._manager.advance(state.id, state.num_computed, state.token_ids, fork_at=fork_at)

    def _fail(self, state: RequestState, text: str, now_s: float) -> TokenEvent:
        usage = state.finish(now_s)
        self._remove(state, keep_tail=False)
        self._totals.failed_requests += 1
        return TokenEvent(state.id, (), finish=FinishReason.ERROR, error=text, usage=usage)

    def _remove(self, state: RequestState, *, keep_tail: bool = True) -> None:
        """Forget a request that ends, whatever it held."""
        del self._requests[state.id]
        if self._speculator is not None:
            self._speculator.forget(state.id)
        self._shares.leave(state.request.tenant)
        if state.id in self._queue:
            self._queue.remove(state)
            self._prefixes.drop(state)
            self._siblings.end(state, serves=False)
        else:
            self._running.remove(state)
            if not self._siblings.end(state, serves=keep_tail):
                self._release(state, is_right=keep_tail)
            self._ended_rows.append(state.id)
        if state.request.session:
            self.sessions.ended(state, keep=keep_tail)

    def _release(self, state: RequestState, *, is_right: bool) -> None:
        if is_right:
            down = self._prefixes.keeps(state)
            self._manager.release(state.id, state.token_ids, down=down)
        else:
            self._manager.release(state.id, wrong_from=state.own_from)

    def _pin(self, state: RequestState, now_s: float) -> None:
        """Keep what the request asked to keep of its prompt."""
        if state.chain is None:
            return
        for pin in state.request.pins:
            num_tokens = min(pin.num_tokens, state.num_computed)
            kept = self._manager.keeper.name(state.chain, state.token_ids, num_tokens)
            if kept.contents:
                name = kept.contents[-1]
                self._pins.add(state.request.tenant, name, kept, now_s + pin.ttl_s)


def _most_tokens(manager: Manager, max_context_tokens: int) -> int:
    """Of one request that has the pool to itself."""
    alone = manager.max_tokens_alone
    return max_context_tokens if alone is None else min(max_context_tokens, alone)
