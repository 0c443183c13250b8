"""A scheduler with its pool and a fake model, driven step by step."""

from collections.abc import Sequence
from dataclasses import replace

from tests.fakes import FakeClock, FakeDisk, FakeRunner, continuation

from kokuban.core.config import SchedulerConfig
from kokuban.core.request import FinishReason, Request, RequestId
from kokuban.core.speculation import Proposer
from kokuban.core.step import StepPlan, TokenEvent
from kokuban.kvcache.manager import Manager
from kokuban.kvcache.pool import BlockPool
from kokuban.kvcache.prefix import KeySpace
from kokuban.kvcache.tiers import LowerTiers
from kokuban.scheduler.prices import Prices
from kokuban.scheduler.scheduler import Scheduler


class Bench:
    """What an engine does, one step at a time, with time that only moves when told.

    `events` holds all events so far, `plans` all plans.
    """

    def __init__(
        self,
        num_blocks: int = 100,
        *,
        token_budget: int = 64,
        max_prefill_tokens: int | None = None,
        step_target_ms: float | None = None,
        max_running: int = 8,
        max_waiting: int = 20_000,
        max_queue_wait_s: float | None = None,
        max_skips: int = 32,
        max_context: int = 0,
        windows: Sequence[int | None] = (None,),
        prefix_cache: bool = False,
        partial_tails: bool = True,
        num_slots: int = 0,
        disk: bool = False,
        prices: Prices | None = None,
        proposer: Proposer | None = None,
    ) -> None:
        self.runner = FakeRunner(16, windows)
        self.disk = FakeDisk(self.runner.host)
        self.tiers = LowerTiers(num_slots, self.disk if disk else None) if num_slots else None
        self.pool = BlockPool(num_blocks)
        space = KeySpace(
            secret=b"0123456789abcdef",
            model_digest=b"model",
            numerics_id="v1",
            kv_dtype="bf16",
            block_size=16,
        )
        self.manager = Manager(
            self.pool,
            block_size=16,
            windows=windows,
            key_space=space if prefix_cache else None,
            partial_tails=partial_tails,
            tiers=self.tiers,
        )
        self.config = SchedulerConfig(
            token_budget=token_budget,
            max_prefill_tokens=max_prefill_tokens,
            step_target_ms=step_target_ms,
            max_running_requests=max_running,
            max_waiting_requests=max_waiting,
            max_queue_wait_s=max_queue_wait_s,
            max_context_tokens=max_context,
            max_skips=max_skips,
        )
        self.scheduler = Scheduler(
            self.config,
            self.manager,
            max_context_tokens=100_000,
            prices=prices,
            proposer=proposer,
        )
        self.clock = FakeClock()
        self.requests: dict[RequestId, Request] = {}
        self.plans: list[StepPlan] = []
        self.events: list[TokenEvent] = []

    def add(self, *requests: Request) -> None:
        for request in requests:
            self.scheduler.add(request, self.clock())
            self.requests[request.id] = request

    def add_choices(self, request: Request, n: int) -> list[str]:
        """Add n choices of one prompt, named `request.id-0` and so on; returns their names."""
        choices = [
            replace(request, id=RequestId(f"{request.id}-{choice}"), choice=choice)
            for choice in range(n)
        ]
        self.scheduler.add_group(choices, self.clock())
        self.requests.update({choice.id: choice for choice in choices})
        return [choice.id for choice in choices]

    def step(self, count: int = 1, seconds: float = 0.0) -> StepPlan:
        """Run steps, each of which must have something to do; returns the last plan."""
        for _ in range(count):
            self.events += self.scheduler.expire(self.clock())
            plan = self.scheduler.plan(self.clock())
            assert plan is not None, "nothing to do"
            result = self.runner.run(plan)
            self.clock.advance(seconds)
            self.events += self.scheduler.commit(plan, result, self.clock())
            self.scheduler.check()
            self.plans.append(plan)
        return self.plans[-1]

    def run(self, max_steps: int = 10_000) -> None:
        """Run until nothing is left."""
        for _ in range(max_steps):
            if not self.scheduler.has_requests:
                return
            self.step()
        raise AssertionError(f"requests are left after {max_steps} steps")

    def idle(self, max_steps: int = 100) -> None:
        """Do what there is to do without requests."""
        for _ in range(max_steps):
            self.disk.work()
            plan = self.scheduler.plan(self.clock())
            if plan is None:
                if self.disk.num_queued == 0:
                    return
                continue
            self.scheduler.commit(plan, self.runner.run(plan), self.clock())
            self.scheduler.check()
            self.plans.append(plan)
        raise AssertionError(f"still busy after {max_steps} steps")

    def tokens(self, name: str) -> list[int]:
        return [
            token.token_id
            for event in self.events
            if event.request_id == name
            for token in event.tokens
        ]

    def scores(self, name: str) -> list[int]:
        return [
            token.token_id
            for event in self.events
            if event.request_id == name
            for token in event.prompt_logprobs
        ]

    def last_event(self, name: str) -> TokenEvent:
        return [event for event in self.events if event.request_id == name][-1]

    def finish(self, name: str) -> FinishReason | None:
        return self.last_event(name).finish

    def preemptions(self) -> dict[str, int]:
        return {
            event.request_id: event.usage.preemptions
            for event in self.events
            if event.usage is not None
        }

    def assert_text_as_alone(self, name: str, num_tokens: int) -> None:
        """The request has exactly the tokens that the model says when it has nobody else."""
        prompt = self.requests[RequestId(name)].prompt_token_ids
        assert self.tokens(name) == continuation(prompt, num_tokens)


def sizes(plan: StepPlan) -> dict[str, int]:
    """For each request of a plan the tokens of its chunk, in batch order."""
    return {chunk.request_id: len(chunk.token_ids) for chunk in plan.chunks}


def admitted(plan: StepPlan) -> list[str]:
    return [admission.request.id for admission in plan.admitted]
