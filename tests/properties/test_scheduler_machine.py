"""Hypothesis looks for a history after which pool, tables, scheduler and text do not fit together.

The fake model reads its text back through the block tables, so a wrong table is a wrong text.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.fakes import FakeDisk, FakeProposer, FakeRunner, continuation, make_request

from kokuban.core.config import EVICTIONS, Eviction, SchedulerConfig
from kokuban.core.errors import Overloaded, PromptTooLong
from kokuban.core.request import NO_BLOCK, FinishReason, Request, RequestId
from kokuban.core.step import BlockStore, StepPlan, TokenEvent
from kokuban.kvcache.manager import Manager
from kokuban.kvcache.pool import BlockPool
from kokuban.kvcache.prefix import KeySpace
from kokuban.kvcache.tiers import LowerTiers
from kokuban.scheduler.scheduler import Scheduler

BLOCK_SIZE = 16
MAX_STEPS = 3000
"""Far more than these few short requests need, whatever the order."""

PREAMBLES = [[*range(1000, 1040)], [*range(1000, 1020), *range(2000, 2030)]]
SPACE = KeySpace(
    secret=b"0123456789abcdef",
    model_digest=b"model",
    numerics_id="v1",
    kv_dtype="bf16",
    block_size=BLOCK_SIZE,
)


class AnyHistory(RuleBasedStateMachine):
    """Requests come, are cancelled, fail and expire between steps; at the end all have ended."""

    @initialize(
        num_blocks=st.integers(4, 24) | st.integers(8, 12),
        windows=st.sampled_from([(None,), (None, 20), (None, 1, 40)]),
        token_budget=st.sampled_from([4, 8, 40, 500]),
        max_prefill=st.sampled_from([None, 3, 30]),
        step_target_ms=st.sampled_from([None, None, 1.0, 1200.0, 20_000.0]),
        max_skips=st.integers(0, 3),
        prefix_cache=st.sampled_from(["on", "on", "whole blocks", "off"]),
        eviction=st.sampled_from(EVICTIONS),
        num_slots=st.sampled_from([40, 12, 2, 0]),
        disk_blocks=st.sampled_from([100, 5, 0]),
        percent_right=st.sampled_from([None, 0, 40, 80, 100]),
    )
    def begin(
        self,
        num_blocks: int,
        windows: Sequence[int | None],
        token_budget: int,
        max_prefill: int | None,
        step_target_ms: float | None,
        max_skips: int,
        prefix_cache: str,
        eviction: Eviction,
        num_slots: int,
        disk_blocks: int,
        percent_right: int | None,
    ) -> None:
        self.config = SchedulerConfig(
            token_budget=token_budget,
            max_prefill_tokens=max_prefill,
            step_target_ms=step_target_ms,
            max_running_requests=4,
            max_waiting_requests=12,
            max_skips=max_skips,
        )
        self.windows = windows
        self.pool = BlockPool(num_blocks, eviction=eviction)
        self.runner = FakeRunner(BLOCK_SIZE, windows)
        self.disk = FakeDisk(self.runner.host, disk_blocks)
        self.tiers = (
            LowerTiers(num_slots, self.disk if disk_blocks else None) if num_slots else None
        )
        self.manager = Manager(
            self.pool,
            block_size=BLOCK_SIZE,
            windows=windows,
            key_space=SPACE if prefix_cache != "off" else None,
            partial_tails=prefix_cache == "on",
            tiers=self.tiers,
        )
        self.prefix_cache = prefix_cache != "off"
        self.proposer = None if percent_right is None else FakeProposer(percent_right)
        self.scheduler = Scheduler(
            self.config, self.manager, max_context_tokens=150, proposer=self.proposer
        )
        self.now_s = 0.0
        self.has_siblings = False
        self.requests: dict[RequestId, Request] = {}
        self.live: list[RequestId] = []
        self.said: dict[RequestId, list[int]] = {}
        self.scored: dict[RequestId, list[int]] = {}
        self.ends: dict[RequestId, TokenEvent] = {}

    @rule(
        preamble=st.sampled_from([[], *PREAMBLES]),
        sizes=st.lists(st.integers(1, 20) | st.integers(1, 80), min_size=1, max_size=4),
        max_tokens=st.sampled_from([None, 0, 1, 5, 40]),
        scores=st.sampled_from([False, False, False, True]),
        priority=st.integers(0, 1),
        tenant=st.sampled_from("ab"),
        scope=st.sampled_from(["", "", "salt"]),
        follows=st.none() | st.tuples(st.integers(0, 5), st.integers(20, 130)),
        patience_s=st.sampled_from([None, None, 3.0]),
        num_choices=st.sampled_from([1, 1, 2, 5]),
    )
    def add(
        self,
        preamble: list[int],
        sizes: list[int],
        max_tokens: int | None,
        scores: bool,
        priority: int,
        tenant: str,
        scope: str,
        follows: tuple[int, int] | None,
        patience_s: float | None,
        num_choices: int,
    ) -> None:
        if follows is not None:
            preamble = self._beginning(*follows)
        for num_own in sizes:
            name = f"r{len(self.requests)}"
            own = make_request(name, num_own).prompt_token_ids
            request = make_request(
                name,
                prompt=[*preamble, *own],
                max_tokens=max_tokens,
                prompt_logprobs=0 if scores or max_tokens == 0 else None,
                arrival_s=self.now_s,
                priority=priority,
                tenant=tenant,
                cache_scope=scope,
                deadline_s=None if patience_s is None else self.now_s + patience_s,
            )
            self._add(request, num_choices)

    def _add(self, request: Request, num_choices: int) -> None:
        choices = [
            replace(request, id=RequestId(f"{request.id}-{choice}"), choice=choice)
            for choice in range(num_choices)
        ]
        try:
            self.scheduler.add_group(choices, self.now_s)
        except PromptTooLong:
            room = self.scheduler.max_context_tokens - len(request.prompt_token_ids)
            assert room < 0 or (room == 0 and request.params.max_tokens != 0)
            return
        except Overloaded:
            assert len(self.live) + num_choices > 4 + 12
            return
        for each in choices:
            self.requests[each.id] = each
            self.live.append(each.id)
            self.said[each.id] = []
            self.scored[each.id] = []
        self.has_siblings |= num_choices > 1

    @rule(count=st.integers(1, 40))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.now_s += 1.0
            self._take(self.scheduler.expire(self.now_s))
            plan = self.scheduler.plan(self.now_s)
            if plan is None:
                assert not self.live or self.disk.num_queued, "somebody can always go on"
                self.disk.work()
                if not self.live:
                    return
                continue
            self._check_plan(plan)
            result = self.runner.run(plan)
            self.now_s += 0.01 * plan.num_tokens
            self._take(self.scheduler.commit(plan, result, self.now_s))
            self.scheduler.check()

    @rule(count=st.integers(1, 4))
    def let_the_disk_work(self, count: int) -> None:
        self.disk.work(count)

    @precondition(lambda self: self.disk.kept)
    @rule(data=st.data())
    def let_the_disk_lose_a_block(self, data: st.DataObject) -> None:
        del self.disk.kept[data.draw(st.sampled_from(sorted(self.disk.kept)))]

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(self.live))
        assert self.scheduler.cancel(request_id)
        self.live.remove(request_id)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def let_one_fail(self, data: st.DataObject) -> None:
        if data.draw(st.integers(0, 2)) == 0:
            self.runner.failures[data.draw(st.sampled_from(self.live))] = "not finite"

    @invariant()
    def blocks_are_shared_by_siblings_and_the_prefix_cache_only(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        self.scheduler.check()
        holders = Counter(
            block
            for request_id in self.manager.request_ids
            for group in range(len(self.windows))
            for block in self.manager.block_table(request_id, group)
            if block != NO_BLOCK
        )
        assert len(holders) == self.pool.num_blocks - self.pool.num_free
        may_share = self.prefix_cache or self.has_siblings
        assert may_share or all(count == 1 for count in holders.values())

    def teardown(self) -> None:
        """No admitted request waits for ever, and all that was taken is given back."""
        if not hasattr(self, "scheduler"):
            return
        for _ in range(MAX_STEPS):
            if not self.live:
                break
            self.step(1)
        assert not self.live, "a request does not come to its end"
        while self.scheduler.has_work:
            self.step(1)
        self.disk.work()
        assert self.scheduler.plan(self.now_s) is None
        while self.disk.num_queued:  # What was written made room for more.
            self.disk.work()
            assert self.scheduler.plan(self.now_s) is None
        if self.tiers is not None:
            self.tiers.check()
            assert self.tiers.num_pinned == 0, "a slot stays pinned"
        assert self.pool.num_free == self.pool.num_blocks
        assert self.proposer is None or not self.proposer.known, "guesses for who is gone"
        assert self.scheduler.stats().running == self.scheduler.stats().waiting == 0

    @rule(really=st.sampled_from([False, False, False, False, True]))
    def forget_what_is_cached(self, really: bool) -> None:
        if really:
            self.manager.forget_free()

    def _beginning(self, index: int, num_tokens: int) -> list[int]:
        """Of an earlier request's prompt and text, cut anywhere."""
        earlier = list(self.requests)[-6:][index : index + 1]
        return [
            token
            for request_id in earlier
            for token in (*self.requests[request_id].prompt_token_ids, *self.said[request_id])
        ][:num_tokens]

    def _check_plan(self, plan: StepPlan) -> None:
        assert plan.num_tokens <= self.config.token_budget
        assert plan.chunks or plan.moves
        assert len({chunk.request_id for chunk in plan.chunks}) == len(plan.chunks)
        prefill = sum(
            len(chunk.token_ids)
            for chunk in plan.chunks
            if chunk.start + len(chunk.token_ids)
            <= len(self.requests[chunk.request_id].prompt_token_ids)
        )
        assert prefill <= (self.config.max_prefill_tokens or self.config.token_budget)
        assert not (plan.preempted and plan.admitted)
        new = {block for chunk in plan.chunks for group in chunk.new_block_ids for block in group}
        new |= {rewrite.block for chunk in plan.chunks for rewrite in chunk.rewrites}
        filled = {move[1] for move in plan.moves if not isinstance(move, BlockStore)}
        assert filled <= new, "a copy into somebody's block"
        assert self.prefix_cache or self.has_siblings or not plan.copies
        assert set(plan.preempted) <= set(plan.ended)

    def _take(self, events: list[TokenEvent]) -> None:
        for event in events:
            assert event.request_id in self.live, "news of a request that has ended"
            self.said[event.request_id] += [token.token_id for token in event.tokens]
            self.scored[event.request_id] += [token.token_id for token in event.prompt_logprobs]
            if event.finish is not None:
                self.live.remove(event.request_id)
                self._check_end(event)

    def _check_end(self, event: TokenEvent) -> None:
        request = self.requests[event.request_id]
        prompt, wanted = request.prompt_token_ids, request.params.max_tokens
        said = self.said[event.request_id]
        assert said == continuation(prompt, len(said)), "not the text that it has alone"
        assert event.usage is not None
        assert event.usage.output_tokens == len(said)
        assert event.usage.preemptions < 20
        if event.finish is FinishReason.ERROR:
            assert event.error is not None
            return
        room = self.scheduler.max_context_tokens - len(prompt)
        assert len(said) == (room if wanted is None else min(wanted, room))
        if request.params.prompt_logprobs is not None:
            assert self.scored[event.request_id] == list(prompt[1:])


AnyHistory.TestCase.settings = settings(
    max_examples=120, stateful_step_count=25, deadline=None, derandomize=True
)
TestAnyHistory = AnyHistory.TestCase
