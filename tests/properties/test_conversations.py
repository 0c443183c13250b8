"""Conversations that are far larger than the pool, at random: every text is the one it has alone.

Each turn goes on from the whole conversation before it, so that most of it is found in the pool, in
host memory or on disk, while cancellations, resets, a slow disk and lost blocks get in between.
"""

import random
from collections import Counter

import pytest
from tests.fakes import FakeDisk, FakeRunner, continuation, make_request

from kokuban.core.config import EVICTIONS, SchedulerConfig
from kokuban.core.request import FinishReason, RequestId
from kokuban.core.step import BlockCopy, BlockLoad, BlockStore, TokenEvent
from kokuban.kvcache.manager import Manager
from kokuban.kvcache.pool import BlockPool
from kokuban.kvcache.prefix import KeySpace
from kokuban.kvcache.tiers import LowerTiers
from kokuban.scheduler.scheduler import Scheduler

BLOCK_SIZE = 16
MAX_CONTEXT = 300
NUM_STEPS = 400
SPACE = KeySpace(
    secret=b"0123456789abcdef",
    model_digest=b"model",
    numerics_id="v1",
    kv_dtype="bf16",
    block_size=BLOCK_SIZE,
)


class Crowd:
    """Six conversations in a pool for two of them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        windows = self.random.choice([(None,), (None, 40), (None, 20, 70)])
        size = self.random.choice([1.0, 1.1, 1.5]) * MAX_CONTEXT / BLOCK_SIZE
        most = int(size * len(windows))
        self.pool = BlockPool(most, eviction=self.random.choice(EVICTIONS))
        self.runner = FakeRunner(BLOCK_SIZE, windows)
        self.disk = FakeDisk(self.runner.host, self.random.choice([30, 1000]))
        self.tiers = LowerTiers(
            self.random.choice([3, 20, 100]), self.disk if self.random.random() < 0.7 else None
        )
        self.manager = Manager(
            self.pool, block_size=BLOCK_SIZE, windows=windows, key_space=SPACE, tiers=self.tiers
        )
        config = SchedulerConfig(
            token_budget=self.random.choice([20, 64, 500]), max_running_requests=6
        )
        self.scheduler = Scheduler(config, self.manager, max_context_tokens=MAX_CONTEXT)
        self.texts: list[list[int]] = [[] for _ in range(6)]
        self.said: dict[RequestId, list[int]] = {}
        self.turn_of: dict[RequestId, tuple[int, list[int]]] = {}
        self.counts: Counter[str] = Counter()
        self.now_s = 0.0

    def run(self) -> None:
        for _ in range(NUM_STEPS):
            self.ask()
            self.disturb()
            self.step()
        while self.turn_of:
            self.disk.work()
            self.step()
        while self.scheduler.has_work:
            self.disk.work()
            self.step()
        self.disk.work()
        assert self.scheduler.plan(self.now_s) is None
        self.scheduler.check()
        assert self.pool.num_free == self.pool.num_blocks
        assert self.tiers.num_pinned == 0, "a slot stays pinned"

    def ask(self) -> None:
        busy = {who for who, _ in self.turn_of.values()}
        idle = [who for who in range(len(self.texts)) if who not in busy]
        if not idle or self.random.random() < 0.5:
            return
        who = self.random.choice(idle)
        num_new = self.random.choice([1, 5, 16, 30, 90])
        text = [*self.texts[who], *(self.random.randrange(50_000) for _ in range(num_new))]
        if len(text) + 80 > MAX_CONTEXT:
            # Begins anew, perhaps with an old beginning.
            text = text[: self.random.choice([3, 40, 100])]
        name = f"r{self.now_s}-{who}"
        request = make_request(name, prompt=text, max_tokens=self.random.choice([1, 3, 40, 80]))
        self.scheduler.add(request, self.now_s)
        self.turn_of[request.id] = who, text
        self.said[request.id] = []

    def disturb(self) -> None:
        self.disk.work(self.random.choice([0, 0, 1, 10]))
        dice = self.random.random()
        if dice < 0.02 and self.turn_of:
            request_id = self.random.choice(sorted(self.turn_of))
            self.scheduler.cancel(request_id)
            del self.turn_of[request_id]
        elif dice < 0.04 and self.turn_of:
            self.runner.failures[self.random.choice(sorted(self.turn_of))] = "not finite"
        elif dice < 0.05 and self.disk.kept:
            del self.disk.kept[self.random.choice(sorted(self.disk.kept))]
        elif dice < 0.053:
            self.manager.forget_free()

    def step(self) -> None:
        self.now_s += 1.0
        plan = self.scheduler.plan(self.now_s)
        if plan is None:
            assert not self.turn_of or self.disk.num_queued, "somebody can always go on"
            return
        self.counts.update(type(move).__name__ for move in plan.moves)
        self.counts["preempted"] += len(plan.preempted)
        for event in self.scheduler.commit(plan, self.runner.run(plan), self.now_s):
            self.take(event)
        self.scheduler.check()

    def take(self, event: TokenEvent) -> None:
        said = self.said[event.request_id]
        said += [token.token_id for token in event.tokens]
        if event.finish is None:
            return
        who, prompt = self.turn_of.pop(event.request_id)
        assert said == continuation(prompt, len(said)), "not the text that it has alone"
        assert event.usage is not None
        self.counts["ram tokens"] += event.usage.cached_ram_tokens
        self.counts["disk tokens"] += event.usage.cached_disk_tokens
        self.counts["cached tokens"] += event.usage.cached_tokens
        assert event.usage.cached_tokens < len(prompt)
        if event.finish is not FinishReason.ERROR:
            self.texts[who] = prompt + said


@pytest.mark.parametrize("seed", range(12))
def test_conversations_have_the_text_that_each_has_alone(seed: int) -> None:
    Crowd(seed).run()


def test_the_conversations_above_use_every_way_that_kv_can_move() -> None:
    counts: Counter[str] = Counter()
    for seed in range(8):
        crowd = Crowd(seed)
        crowd.run()
        counts += crowd.counts
    for what in (BlockCopy, BlockStore, BlockLoad):
        assert counts[what.__name__] > 50, f"{what.__name__}: {counts}"
    assert counts["preempted"] > 10
    for what in ("ram tokens", "disk tokens"):
        assert counts[what] > 100, f"{what}: {counts}"
