"""Agents whose tools run: what pausing their sessions spares, and that its prices are true."""

from dataclasses import replace

import pytest
from tests.unit.simulate.setups import INSTANT, setup, small_model

from kokuban.core.step import BlockLoad, BlockMove, BlockStore, StepPlan
from kokuban.kvcache.cached import CachedPrefix
from kokuban.plan.cost import CostModel
from kokuban.scheduler.prefixes import Prefixes
from kokuban.scheduler.sessions import LEAD_S
from kokuban.scheduler.state import RequestState
from kokuban.simulate.agents import AgentLoad, make_agents
from kokuban.simulate.pauses import PauseReplay, PauseResult, Pausing, replay_pauses

LOAD = AgentLoad(agents=6, turns=3, system=150, new=20, answer=10, tool_s=30.0, every_s=7.0)
PREFILL = 6 * (170 + 2 * 21)
"""Tokens that are new: the last one of an answer is computed as part of the next prompt."""


def model(**constants: float) -> CostModel:
    """Steps of 10 ms. A token takes a millisecond, and moving a block some microseconds."""
    usual = {"step_overhead_s": 0.01, "token_overhead_s": 1e-3, "copy_bytes_per_s": 1e8}
    return small_model(replace(INSTANT, **{**usual, **constants}))


def run(num_ram_blocks: int, pausing: Pausing, load: AgentLoad = LOAD) -> PauseResult:
    """In a pool for two conversations."""
    small = setup(num_blocks=32, num_ram_blocks=num_ram_blocks, model=model())
    return replay_pauses(make_agents(load), small, pausing)


def test_without_anything_below_the_pool_conversations_are_computed_again() -> None:
    result = run(0, "never")

    assert result.prefill_tokens == PREFILL + result.again_tokens
    assert result.again_tokens > 1000
    assert (result.restored_tokens, result.needless_tokens) == (0, 0)
    assert (result.places, result.resumed_from) == ({}, {})


@pytest.mark.parametrize("pausing", ["never", "told", "learned"])
def test_with_host_memory_only_what_is_new_is_computed(pausing: Pausing) -> None:
    result = run(1000, pausing)

    assert (result.prefill_tokens, result.again_tokens) == (PREFILL, 0)
    assert result.needless_tokens == 0
    assert result.restored_tokens > 1000


def test_a_paused_session_is_in_the_pool_when_its_tool_is_done() -> None:
    waits, paused = run(1000, "never"), run(1000, "told")

    assert waits.replay.cached_ram_tokens > 1000
    assert paused.replay.cached_ram_tokens == 0
    assert sum(paused.places.values()) == sum(paused.resumed_from.values()) == 12
    # The first one to pause found its blocks where they were: nobody had needed them.
    assert paused.places["below"] == 12
    assert paused.resumed_from == {"ram": 11, "pool": 1}
    assert paused.resumed_ttft_s.p50 < waits.resumed_ttft_s.p50


def test_an_engine_that_sleeps_wakes_up_to_bring_a_session_back() -> None:
    """The first agent's KV goes down and the second one takes the pool; then nothing happens."""
    moved: list[tuple[float, tuple[BlockMove, ...]]] = []

    class Watched(PauseReplay):
        def on_plan(self, plan: StepPlan) -> None:
            super().on_plan(plan)
            if not plan.chunks:
                moved.append((self.now_s, plan.moves))

    load = replace(LOAD, agents=2, turns=2, system=430, tool_s=60.0)
    tight = setup(num_blocks=32, num_ram_blocks=1000, model=model())
    replay = Watched(make_agents(load), tight, "told")
    result = replay.measure()

    assert result.places == {"below": 2}
    assert (result.again_tokens, result.replay.cached_ram_tokens) == (0, 0)
    # The first answer ends after some tenths of a second.
    [(stored_s, stores), (_, others), (loaded_s, loads), *_] = moved
    assert 0.0 < stored_s < 1.0
    assert [type(move) for move in (*stores, *others)] == [BlockStore] * 58
    assert 0.0 < stored_s + 60.0 - LEAD_S - loaded_s < 0.01
    # Three of its 29 blocks stayed: the second agent got as many that nobody had used yet.
    assert [type(move) for move in loads] == [BlockLoad] * 26


def test_tools_that_vary_are_learned_well_enough_to_lose_nothing() -> None:
    result = run(1000, "learned", replace(LOAD, turns=6, spread=0.5))

    assert (result.again_tokens, result.needless_tokens) == (0, 0)


def test_what_is_dear_to_bring_up_is_computed_again() -> None:
    slow = setup(num_blocks=32, num_ram_blocks=1000, model=model(copy_bytes_per_s=1e2))

    result = replay_pauses(make_agents(LOAD), slow, "told")

    assert result.again_tokens > 1000
    assert result.restored_tokens == 0
    assert result.needless_tokens == 0
    assert set(result.places) <= {"pool", "dropped"}


def test_a_wrong_choice_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that sends KV down and never brings it up."""

    def in_pool(self: Prefixes, state: RequestState) -> CachedPrefix:
        return replay.manager.find_cached_prefix(state.chain, state.token_ids, below=False)

    monkeypatch.setattr(Prefixes, "find", in_pool)
    small = setup(num_blocks=32, num_ram_blocks=1000, model=model())
    replay = PauseReplay(make_agents(LOAD), small, "never")

    result = replay.measure()

    assert result.needless_tokens == result.again_tokens > 1000
