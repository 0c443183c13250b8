"""Chooses the chunks of one step: who decodes, who goes on with its prompt, who is admitted.

In this order: every running request that needs only its last token gets it; then prompts that are
under way get what is left of the budget; then waiting requests are admitted into the rest. Blocks
are taken in the same order, so decoding never waits for a prefill. A choice whose sibling has
computed their prompt is admitted as a fork: see `siblings`.

When blocks run out, a decoding request preempts the one that is cheapest to bring back, itself
perhaps. A prefill takes
a shorter chunk, or waits for a step; it preempts only requests of a less important priority. A
step that preempted admits nobody: the blocks belong to those that ran out.

A request whose reader is behind is suspended: it gives its blocks and its seat to others, and waits
until it is woken. What it had computed can be found in the cache.

Owns nothing: it moves requests between the queue and the running list of its scheduler.
"""

from collections.abc import Sequence

from kokuban.core.config import SchedulerConfig
from kokuban.core.request import RequestId
from kokuban.core.step import Admission, Chunk
from kokuban.kvcache.cached import CachedPrefix
from kokuban.kvcache.manager import Manager
from kokuban.scheduler.draft import Draft
from kokuban.scheduler.fairness import TenantShares
from kokuban.scheduler.pace import Pace
from kokuban.scheduler.prefixes import Prefixes
from kokuban.scheduler.queue import LOOKAHEAD, WaitingQueue
from kokuban.scheduler.running import RunningList
from kokuban.scheduler.siblings import SiblingForks, fork_point
from kokuban.scheduler.state import RequestState
from kokuban.scheduler.step_target import StepTarget

FRESH_LOOKS = 4
"""Requests of a step that are looked up again although they did not fit: behind them the last look
counts, since a look at a long prompt takes a millisecond."""


class Planner:
    """See the module. One call of `plan` costs O(running requests), whatever waits."""

    def __init__(
        self,
        config: SchedulerConfig,
        manager: Manager,
        queue: WaitingQueue,
        siblings: SiblingForks,
        running: RunningList,
        shares: TenantShares,
        pace: Pace,
        prefixes: Prefixes,
        target: StepTarget | None = None,
    ) -> None:
        self._config = config
        self._manager = manager
        self._queue = queue
        self._siblings = siblings
        self._running = running
        self._shares = shares
        self._pace = pace
        self._prefixes = prefixes
        self._target = target
        self.suspended: set[RequestId] = set()
        """Requests that decode no further for now. Whoever puts one in takes it out again."""

        self._max_chunk = min(config.token_budget, config.max_prefill_tokens or config.token_budget)

    def plan(self, now_s: float) -> Draft:
        """Choose the next step and hold the blocks that it writes.

        Returns:
            A draft without chunks only if nothing runs and nothing could be begun.
        """
        draft = Draft.begin(self._config)
        if self.suspended:
            self._step_aside(draft, now_s)
        num_aside = len(draft.preempted)
        self._plan_decodes(draft, now_s)
        if self._target is not None:
            draft.time = self._target.begin(now_s, len(draft.chunks))
        self._plan_prefills(draft, now_s)
        # What prompts under way still need was free when they were admitted, and only requests
        # that decode can have taken it since: one of those has a chunk, or there are none.
        assert draft.chunks or not len(self._running), "the running requests block each other"
        if len(draft.preempted) == num_aside:
            self._admit(draft, now_s)
        self._siblings.release_ended()
        return draft

    def _step_aside(self, draft: Draft, now_s: float) -> None:
        """Take the seats and blocks of the suspended; a prompt under way is computed to its end."""
        for state in tuple(self._running):
            if state.id in self.suspended and state.decodes:
                self._preempt(state, draft, now_s)

    def _plan_decodes(self, draft: Draft, now_s: float) -> None:
        for state in self._running:
            if not state.decodes:
                draft.under_way.append(state)
                continue
            while state.running and not self._add_chunk(draft, state, 1):
                if not self._siblings.release_ended():
                    self._preempt(self._victim(), draft, now_s)

    def _plan_prefills(self, draft: Draft, now_s: float) -> None:
        for state in draft.under_way:
            if draft.prefill_room == 0:
                return
            if not state.running:
                continue
            size = self._chunk_size(draft, state)
            if size == 0 and self._siblings.release_ended():
                size = self._chunk_size(draft, state)
            while size == 0 and self._running.last.request.priority > state.request.priority:
                self._preempt(self._victim(), draft, now_s)
                size = self._chunk_size(draft, state)
            if size:
                self._add_chunk(draft, state, size)

    def _admit(self, draft: Draft, now_s: float) -> None:
        spare = self._num_spare_blocks()
        if spare < 1 and len(self._running):
            # Whatever is cached, the last token of a request needs a block of its own.
            return
        passed: list[RequestState] = []
        for state in self._queue.candidates():
            if draft.prefill_room == 0 or len(self._running) == self._config.max_running_requests:
                return
            if state.id in self.suspended:
                continue
            if self._was_too_large(state, passed, spare):
                passed.append(state)
            else:
                found, needed, spare = self._look(state, spare)
                if found is None:
                    continue  # It waits for the disk or for a sibling; others may pass meanwhile.
                # Alone it always fits: `Scheduler.add` has seen to that.
                if needed <= spare or not len(self._running):
                    self._begin(draft, state, found, now_s)
                    spare -= needed + self._manager.num_groups
                    for other in passed:
                        other.num_skips += 1
                else:
                    passed.append(state)
            if self._nobody_may_pass(passed):
                return

    def _was_too_large(
        self, state: RequestState, passed: Sequence[RequestState], spare: int
    ) -> bool:
        """Whether the last look at a request behind several that do not fit is enough."""
        return len(passed) >= FRESH_LOOKS and len(self._running) > 0 and state.needed > spare

    def _look(
        self, state: RequestState, spare: int
    ) -> tuple[CachedPrefix | RequestState | None, int, int]:
        """What a request can begin from, the blocks that it needs, and those that are spare."""
        found, needed = self._find_beginning(state, spare)
        if found is not None and needed > spare:
            before = self._manager.num_free
            if self._siblings.release_ended():
                spare += self._manager.num_free - before
                found, needed = self._find_beginning(state, spare)
        state.needed = needed
        return found, needed, spare

    def _nobody_may_pass(self, passed: list[RequestState]) -> bool:
        """Whether the requests that did not fit have been passed often enough.

        A preempted one is never passed: its client has seen the beginning of its text.
        """
        return len(passed) == LOOKAHEAD or any(
            state.num_preemptions or state.num_skips >= self._config.max_skips for state in passed
        )

    def _find_beginning(
        self, state: RequestState, spare: int
    ) -> tuple[RequestState | CachedPrefix | None, int]:
        """What a waiting request may begin with: a sibling to fork from, or a cached prefix.

        Returns:
            None if it has to wait for either; and the free blocks that it needs.
        """
        source = self._siblings.find_source(state)
        if source is not None:
            shared = self._manager.num_fork_shares(fork_point(state))
            return source, self._manager.num_needed(state.num_prompt, max_chunk=1) - shared
        if self._siblings.hold_back(state):
            return None, 0
        cached = self._prefixes.find(state)
        if cached is None:
            return None, 0
        needed = self._num_needed(state) - self._manager.num_shared(cached)
        if needed + self._manager.num_lent(cached) > spare:
            cached = cached.without_tail()
        return cached, needed

    def _begin(
        self, draft: Draft, state: RequestState, found: RequestState | CachedPrefix, now_s: float
    ) -> None:
        self._queue.remove(state)
        self._pace.note_admission(now_s, others_wait=len(self._queue) > 0)
        self._siblings.begin(state)
        if isinstance(found, RequestState):
            self._manager.fork(found.id, state.id, fork_point(state), state.chain)
            scores = self._siblings.prompt_scores(state)
            state.begin_fork(now_s, found, fork_point(state), scores)
        else:
            restored = self._manager.begin(state.id, state.chain, found, state.token_ids)
            state.begin(now_s, found.num_tokens, restored)
        self._prefixes.drop(state)
        if state.num_preemptions == 0:
            num_new = state.num_prompt - state.num_computed
            self._shares.charge(state.request.tenant, input_tokens=num_new)
        self._running.add(state)
        draft.admitted.append(Admission(state.request, state.output_token_ids))
        size = self._chunk_size(draft, state)
        added = self._add_chunk(draft, state, size) if size else False
        assert added, f"request {state.id} was admitted without a free block"

    def _preempt(self, state: RequestState, draft: Draft, now_s: float) -> None:
        draft.drop(state)
        draft.preempted.append(state.id)
        self._siblings.preempt(state)
        self._manager.release(state.id, state.token_ids, down=self._prefixes.keeps(state))
        self._running.remove(state)
        state.preempt(now_s)
        self._queue.push_front(state)

    def _chunk_size(self, draft: Draft, state: RequestState) -> int:
        """Most tokens of the request that budget and free blocks allow now; 0 if none."""
        end = state.num_computed + draft.prefill_size(state)
        return self._manager.num_tokens_fitting(state.id, end) - state.num_computed

    def _add_chunk(self, draft: Draft, state: RequestState, size: int) -> bool:
        """Have the step compute the next tokens of a request; False if blocks are lacking."""
        start, tokens = state.num_computed, state.token_ids
        end = start + size
        extension = self._manager.extend(state.id, end)
        if extension is None:
            return False
        chunk = Chunk(
            state.id,
            start,
            tuple(tokens[start:end]),
            extension.new_block_ids,
            end == len(tokens) and state.max_output_tokens > 0,
            extension.rewrites,
        )
        draft.add(state, chunk)
        return True

    def _victim(self) -> RequestState:
        return self._running.victim(self._prefixes.bring_back_s)

    @property
    def num_spare_blocks(self) -> int:
        """Free blocks, but pinned ones, that may be filled with what nobody has asked for yet."""
        return self._manager.num_free_unpinned - len(self._running) * self._manager.num_groups

    def _num_spare_blocks(self) -> int:
        """Free blocks that newcomers may have.

        One for each running request and group is kept back, so that a newcomer does not preempt,
        or is not preempted, as soon as somebody's last block is full. Nothing need be kept for
        prompts under way: while one has a chunk left, it has used up the budget or the blocks.
        """
        return self._manager.num_free - len(self._running) * self._manager.num_groups

    def _num_needed(self, state: RequestState) -> int:
        return self._manager.num_needed(len(state.token_ids), max_chunk=self._max_chunk)
