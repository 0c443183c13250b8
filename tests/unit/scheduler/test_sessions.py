"""Sessions: where the KV of a paused conversation lies, and that it is back in time."""

from dataclasses import dataclass

import pytest
from tests.fakes import make_request
from tests.unit.scheduler.helpers import Bench

from kokuban.core.request import Pin, RequestId
from kokuban.core.session import SessionStatus
from kokuban.core.step import BlockLoad, BlockStore, Usage
from kokuban.scheduler import sessions
from kokuban.scheduler.durations import UNKNOWN_S, Durations
from kokuban.scheduler.sessions import LEAD_S, SessionKey

AGENT = SessionKey("", "agent")


@dataclass(frozen=True)
class FixedPrices:
    """So many seconds for a token computed and for a block moved."""

    token_s: float = 0.01
    block_s: float = 0.001

    def recompute_s(self, start: int, num_tokens: int) -> float:
        return self.token_s * num_tokens

    def restore_s(self, num_blocks: int, num_disk_blocks: int = 0) -> float:
        return self.block_s * (num_blocks + num_disk_blocks)

    def store_s(self, num_blocks: int) -> float:
        return self.block_s * num_blocks


def talk(bench: Bench, name: str, num_new: int = 40, session: str = "agent") -> Usage:
    """One turn of a conversation: all that was said, and something new."""
    turns = [each for each in bench.requests.values() if each.session == session]
    said = [*turns[-1].prompt_token_ids, *bench.tokens(turns[-1].id)] if turns else []
    new = make_request(name, num_new).prompt_token_ids
    bench.add(make_request(name, prompt=[*said, *new], max_tokens=4, session=session))
    bench.run()
    usage = bench.last_event(name).usage
    assert usage is not None
    return usage


def pause(bench: Bench, seconds: float | None = 30.0, *tools: str) -> SessionStatus:
    status = bench.scheduler.sessions.pause(AGENT, seconds, tools, bench.clock())
    assert status is not None
    return status


def crowd_out(bench: Bench) -> None:
    """Others come and take the whole pool."""
    name = f"big{len(bench.requests)}"
    bench.add(make_request(name, 16 * bench.pool.num_blocks - 1, max_tokens=1))
    bench.run()


def test_a_pause_in_an_empty_pool_stays() -> None:
    bench = Bench(1000, prefix_cache=True, num_slots=100, prices=FixedPrices(block_s=0.1))
    talk(bench, "one")

    status = pause(bench, seconds=0.5)

    assert status.place == "pool"
    assert status.num_tokens == 43
    assert status.num_blocks == 3
    assert status.prices is not None
    # 3 of 1,000 blocks for half a second, of which nearly all others are free.
    assert status.prices.stay_s == pytest.approx(0.5 * 0.003 * 0.003)
    assert status.prices.move_s == pytest.approx(0.6)
    assert status.prices.recompute_s == pytest.approx(0.43)
    assert bench.pool.num_protected == 3


def test_a_long_pause_in_a_tight_pool_goes_down_and_makes_room() -> None:
    bench = Bench(8, prefix_cache=True, num_slots=100, prices=FixedPrices())
    crowd_out(bench)
    talk(bench, "one", num_new=70)

    status = pause(bench)
    bench.idle()

    assert status.place == "below"
    assert bench.tiers is not None
    assert bench.tiers.num_in_ram == 8 + 5, "the crowd's and its own"
    # Its blocks, tail first, are the next that others get.
    assert bench.pool.free_order()[:5] == (3, 4, 5, 6, 7)


def test_without_anything_below_a_long_pause_stays_only_where_that_is_cheaper() -> None:
    cheap = Bench(8, prefix_cache=True, prices=FixedPrices(token_s=1e-6))
    dear = Bench(8, prefix_cache=True, prices=FixedPrices(token_s=10.0))
    for bench in (cheap, dear):
        crowd_out(bench)
        talk(bench, "one")

    assert pause(cheap).place == "dropped"
    assert cheap.pool.free_order()[:3] == (5, 6, 7)
    assert pause(dear).place == "pool"
    assert dear.pool.free_order()[-3:] == (5, 6, 7)


def test_what_went_down_is_back_shortly_before_it_is_needed() -> None:
    bench = Bench(8, prefix_cache=True, num_slots=100, prices=FixedPrices())
    crowd_out(bench)
    talk(bench, "one", num_new=70)
    pause(bench, seconds=30.0)
    crowd_out(bench)
    bench.idle()
    due_s = bench.scheduler.next_due_s
    assert due_s == pytest.approx(30.0 - LEAD_S - 0.01)

    bench.clock.advance(due_s - 0.01)
    bench.idle()
    assert not any(isinstance(move, BlockLoad) for plan in bench.plans for move in plan.moves)
    bench.clock.advance(0.02)
    bench.idle()
    loads = [move for plan in bench.plans for move in plan.moves if isinstance(move, BlockLoad)]
    assert len(loads) == 5
    usage = talk(bench, "two", num_new=10)

    assert usage.cached_tokens == 73
    assert usage.cached_ram_tokens == 0, "it was in the pool when the request came"
    assert usage.resumed_from == "ram"
    bench.assert_text_as_alone("two", 4)


def test_a_session_that_does_not_fit_beside_those_that_run_waits_for_its_request() -> None:
    """What of it is still in the pool takes free blocks too, as soon as it is held."""
    bench = Bench(7, prefix_cache=True, num_slots=100, prices=FixedPrices())
    talk(bench, "one", num_new=70)
    pause(bench, seconds=30.0)
    bench.idle()
    bench.add(make_request("other", 40, max_tokens=8))
    bench.step(4)
    # Two of its five blocks are in the pool, and two more are free; three are below.
    assert bench.pool.num_free == 4

    bench.clock.advance(29.9)
    bench.step()
    assert not any(isinstance(m, BlockLoad) for plan in bench.plans for m in plan.moves)
    bench.run()

    assert talk(bench, "two", num_new=10).cached_tokens == 73
    bench.assert_text_as_alone("two", 4)


def test_a_request_that_comes_early_ends_the_pause() -> None:
    bench = Bench(8, prefix_cache=True, num_slots=100, prices=FixedPrices())
    crowd_out(bench)
    talk(bench, "one", num_new=70)
    pause(bench)
    crowd_out(bench)

    usage = talk(bench, "two", num_new=10)

    assert usage.cached_ram_tokens == 73
    assert usage.resumed_from == "ram"
    bench.clock.advance(1000.0)
    bench.idle()
    status = bench.scheduler.sessions.status(AGENT)
    assert status is not None
    assert not status.paused
    assert bench.pool.num_protected == 0


def test_a_session_comes_back_from_disk_before_its_return() -> None:
    bench = Bench(8, prefix_cache=True, num_slots=6, disk=True, prices=FixedPrices())
    talk(bench, "one", num_new=70)
    pause(bench, seconds=10.0)
    bench.idle()
    for _ in range(3):  # Host memory has other things by now.
        crowd_out(bench)
        bench.idle()
    bench.clock.advance(9.95)
    for _ in range(10):
        bench.idle()
        bench.clock.advance(0.01)

    usage = talk(bench, "two", num_new=10)

    assert usage.cached_tokens == 73
    assert (usage.cached_ram_tokens, usage.cached_disk_tokens) == (0, 0)
    assert usage.resumed_from == "disk"


def test_a_dropped_session_is_computed_again() -> None:
    bench = Bench(8, prefix_cache=True, prices=FixedPrices(token_s=1e-6))
    crowd_out(bench)
    talk(bench, "one", num_new=70)
    assert pause(bench).place == "dropped"
    crowd_out(bench)

    assert talk(bench, "two", num_new=10).resumed_from == "recompute"
    bench.assert_text_as_alone("two", 4)


def test_how_long_a_tool_takes_is_learned() -> None:
    bench = Bench(200, prefix_cache=True)
    for turn, seconds in enumerate([2.0, 8.0, 3.0]):
        talk(bench, f"turn{turn}")
        expected = pause(bench, None, "search").expected_s
        assert expected == [UNKNOWN_S, 2.0, 5.0][turn]
        bench.clock.advance(seconds)
    talk(bench, "last")

    assert pause(bench, None, "search").expected_s == 3.0
    assert pause(bench, None, "search", "shell").expected_s == UNKNOWN_S
    bench.clock.advance(7.0)
    talk(bench, "more")
    assert pause(bench, None, "shell", "search").expected_s == 7.0


def test_resume_brings_a_session_back_at_once() -> None:
    bench = Bench(8, prefix_cache=True, num_slots=100, prices=FixedPrices())
    crowd_out(bench)
    talk(bench, "one", num_new=70)
    pause(bench)
    crowd_out(bench)

    bench.scheduler.sessions.resume(AGENT, bench.clock())
    bench.idle()

    assert len([m for p in bench.plans for m in p.moves if isinstance(m, BlockLoad)]) == 5


def test_a_deleted_session_is_unknown_and_its_blocks_go_first() -> None:
    bench = Bench(8, prefix_cache=True)
    crowd_out(bench)
    talk(bench, "one")
    assert bench.scheduler.sessions.delete(AGENT)

    assert not bench.scheduler.sessions.delete(AGENT)
    assert bench.scheduler.sessions.status(AGENT) is None
    assert bench.scheduler.sessions.pause(AGENT, 1.0, (), 0.0) is None
    assert bench.pool.free_order()[:3] == (5, 6, 7)


def test_a_session_belongs_to_its_tenant() -> None:
    bench = Bench(100, prefix_cache=True)
    talk(bench, "one")

    assert bench.scheduler.sessions.status(SessionKey("other", "agent")) is None


def test_a_pause_during_a_request_takes_effect_when_it_ends() -> None:
    bench = Bench(8, prefix_cache=True, num_slots=100, prices=FixedPrices())
    crowd_out(bench)
    bench.add(make_request("one", 70, max_tokens=4, session="agent"))
    bench.step()
    status = pause(bench)
    assert status.active

    bench.run()
    bench.idle()

    assert bench.pool.free_order()[:5] == (3, 4, 5, 6, 7)
    assert sum(isinstance(m, BlockStore) for p in bench.plans for m in p.moves) == 8 + 5


def test_pins_go_last_within_the_quota_and_end_in_time() -> None:
    bench = Bench(20, prefix_cache=True)
    bench.add(make_request("kept", 100, max_tokens=1, pins=[Pin(64, ttl_s=60.0)]))
    bench.run()
    bench.add(make_request("other", 17, max_tokens=1))
    bench.run()
    assert bench.pool.num_protected == 4
    assert bench.pool.free_order()[-4:] == (3, 2, 1, 0)

    bench.clock.advance(61.0)
    bench.scheduler.plan(bench.clock())

    assert bench.pool.num_protected == 0


def test_a_tenant_pins_no_more_than_its_share() -> None:
    bench = Bench(20, prefix_cache=True)
    for name in "ab":
        bench.add(make_request(name, 112, max_tokens=1, tenant="t", pins=[Pin(112, 60.0)]))
        bench.run()

    # Half of the pool: the seven blocks of "a", and the first three of "b".
    assert bench.pool.num_protected == 10


def test_pins_give_way_to_requests_that_run() -> None:
    bench = Bench(10, prefix_cache=True)
    bench.add(make_request("kept", 80, max_tokens=1, pins=[Pin(80, 600.0)]))
    bench.run()

    crowd_out(bench)

    assert bench.pool.num_protected < 5
    assert bench.finish("big1") is not None


def test_tenants_learn_apart_how_long_a_tool_takes() -> None:
    durations = Durations()
    durations.learn("one", ("search",), 9.0)

    assert durations.expected_s("one", ("search",)) == 9.0
    assert durations.expected_s("two", ("search",)) == UNKNOWN_S


def test_a_short_pin_does_not_end_a_long_one() -> None:
    bench = Bench(20, prefix_cache=True)
    for name, ttl_s in (("long", 1000.0), ("short", 5.0)):
        bench.add(make_request(name, prompt=range(64), max_tokens=1, pins=[Pin(48, ttl_s)]))
        bench.run()

    bench.clock.advance(500.0)
    bench.scheduler.plan(bench.clock())
    assert bench.pool.num_protected == 3
    bench.clock.advance(501.0)
    bench.scheduler.plan(bench.clock())
    assert bench.pool.num_protected == 0


def test_what_finds_no_room_is_tried_again_until_it_is_needed() -> None:
    bench = Bench(9, prefix_cache=True, num_slots=100, prices=FixedPrices())
    talk(bench, "one", num_new=70)
    pause(bench, seconds=30.0)
    bench.idle()
    bench.add(make_request("big", 100, max_tokens=30))
    bench.step()
    assert bench.scheduler.next_due_s is not None
    bench.clock.advance(bench.scheduler.next_due_s + 0.01)
    bench.step(3)
    assert not any(isinstance(move, BlockLoad) for plan in bench.plans for move in plan.moves)

    bench.run()
    bench.clock.advance(0.1)
    bench.idle()

    loads = [move for plan in bench.plans for move in plan.moves if isinstance(move, BlockLoad)]
    assert len(loads) == 5
    assert talk(bench, "two", num_new=10).resumed_from == "ram"


def test_more_sessions_than_are_remembered_may_run_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sessions, "MAX_SESSIONS", 3)
    bench = Bench(100, prefix_cache=True, max_running=16)
    for index in range(6):
        bench.add(make_request(f"r{index}", 20, session=f"s{index}", tenant="t"))
    bench.run()
    bench.scheduler.sessions.check()

    known = [bench.scheduler.sessions.status(SessionKey("t", f"s{i}")) for i in range(6)]
    assert sum(status is not None for status in known) == 3


def test_the_tenant_with_most_sessions_loses_them_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MAX_SESSIONS", 4)
    bench = Bench(100, prefix_cache=True)
    for tenant, name in [("few", "f"), ("many", "a"), ("many", "b"), ("many", "c"), ("many", "d")]:
        bench.add(make_request(name, 20, session=name, tenant=tenant))
        bench.run()
        bench.scheduler.sessions.pause(SessionKey(tenant, name), 99.0, (), bench.clock())

    assert bench.scheduler.sessions.status(SessionKey("few", "f")) is not None
    assert bench.scheduler.sessions.status(SessionKey("many", "a")) is None
    assert bench.scheduler.sessions.status(SessionKey("many", "d")) is not None


def test_only_the_latest_pause_counts() -> None:
    bench = Bench(8, prefix_cache=True, num_slots=100, prices=FixedPrices())
    crowd_out(bench)
    talk(bench, "one", num_new=30)
    pause(bench, seconds=10.0)
    bench.clock.advance(1.0)
    talk(bench, "two", num_new=30)
    pause(bench, seconds=3600.0)
    crowd_out(bench)
    bench.clock.advance(11.0)
    bench.idle()

    status = bench.scheduler.sessions.status(AGENT)
    assert status is not None
    assert status.paused
    assert bench.pool.num_protected == 0, "the hour has hardly begun"


def test_asking_a_thousand_times_brings_a_session_back_once() -> None:
    bench = Bench(8, prefix_cache=True, num_slots=100, prices=FixedPrices())
    crowd_out(bench)
    talk(bench, "one", num_new=30)
    pause(bench, seconds=3600.0)
    for _ in range(1000):
        bench.scheduler.sessions.resume(AGENT, bench.clock())

    assert len(bench.scheduler.sessions._due) == 2


def test_sessions_that_find_no_room_leave_the_disk_to_requests() -> None:
    """Four of them once kept every request with KV on disk waiting for ever."""
    bench = Bench(30, prefix_cache=True, num_slots=40, disk=True, prices=FixedPrices())
    for index in range(4):
        bench.add(make_request(f"a{index}", 100, max_tokens=2, session=f"s{index}"))
        bench.run()
        bench.scheduler.sessions.pause(SessionKey("", f"s{index}"), 5.0, (), bench.clock())
        bench.idle()
    victim = make_request("victim", 100).prompt_token_ids
    bench.add(make_request("victim", prompt=victim, max_tokens=1))
    bench.run()
    for _ in range(3):
        crowd_out(bench)
        bench.idle()
    bench.add(make_request("long", 16 * 20, max_tokens=150))
    for _ in range(100):
        bench.step()
        bench.disk.work()
        bench.clock.advance(0.1)
    bench.scheduler.sessions.check()
    bench.add(make_request("again", prompt=victim, max_tokens=1))
    for _ in range(400):
        bench.disk.work()
        if not bench.scheduler.has_requests:
            break
        if (plan := bench.scheduler.plan(bench.clock())) is not None:
            bench.events += bench.scheduler.commit(plan, bench.runner.run(plan), bench.clock())
        bench.clock.advance(0.1)

    assert not bench.scheduler.has_requests, "a request waits for ever"
    bench.idle()
    assert bench.tiers is not None
    assert bench.tiers.num_pinned == 0


def test_what_others_want_too_stays_where_it_is() -> None:
    """A pause or an end of one conversation does not throw away what another begins with."""
    bench = Bench(8, prefix_cache=True, prices=FixedPrices(token_s=1e-6))
    crowd_out(bench)
    system = list(range(32))
    for name in ("one", "two"):
        own = make_request(name, 16).prompt_token_ids
        bench.add(make_request(name, prompt=[*system, *own], max_tokens=1, session=name))
        bench.run()
    before = bench.pool.free_order()

    bench.scheduler.sessions.delete(SessionKey("", "one"))

    # Blocks 7 and 6 hold the system prompt; 5 was its own.
    after = bench.pool.free_order()
    assert after[0] == 5
    assert after.index(7) == before.index(7)
    assert after.index(6) == before.index(6)


def test_a_short_pin_ends_without_touching_a_longer_one_over_the_same_blocks() -> None:
    bench = Bench(40, prefix_cache=True)
    bench.add(make_request("a", prompt=range(100), max_tokens=1, pins=[Pin(64, 10.0)]))
    bench.run()
    bench.add(make_request("b", prompt=range(100), max_tokens=1, pins=[Pin(96, 3600.0)]))
    bench.run()
    assert bench.pool.num_protected == 6

    bench.clock.advance(11.0)
    bench.scheduler.plan(bench.clock())

    assert bench.pool.num_protected == 6


def test_pins_that_hold_nothing_are_not_kept() -> None:
    bench = Bench(8, prefix_cache=True)
    for index in range(100):
        request = make_request(f"r{index}", 60, max_tokens=1, tenant="t", pins=[Pin(60, 86400.0)])
        bench.add(request)
        bench.run()

    assert len(bench.scheduler._pins) <= 4
    assert len(bench.scheduler._pins._ends) <= 2 * 4 + 64 + 1


def test_a_pause_that_waits_for_a_request_ends_with_its_failure() -> None:
    bench = Bench(20, prefix_cache=True)
    bench.add(make_request("one", 40, max_tokens=4, session="agent"))
    bench.step()
    pause(bench)
    bench.runner.failures[RequestId("one")] = "not finite"
    bench.run()

    status = bench.scheduler.sessions.status(AGENT)
    assert status is not None
    assert not status.paused
