"""The order in which waiting requests are tried."""

import sys
from types import FrameType

import pytest
from tests.fakes import make_request
from tests.unit.scheduler.helpers import Bench, admitted, sizes

from kokuban.scheduler.fairness import TenantShares
from kokuban.scheduler.queue import LOOKAHEAD, WaitingQueue
from kokuban.scheduler.state import RequestState


class Waiting:
    """A queue with the tenants it serves."""

    def __init__(self) -> None:
        self.shares = TenantShares()
        self.queue = WaitingQueue(self.shares)
        self.states: dict[str, RequestState] = {}

    def push(
        self,
        name: str,
        tenant: str = "",
        priority: int = 0,
        deadline_s: float | None = None,
    ) -> RequestState:
        request = make_request(name, tenant=tenant, priority=priority, deadline_s=deadline_s)
        state = self.states[name] = RequestState(request, len(self.states), 4, None)
        self.shares.arrive(tenant)
        self.queue.push(state)
        return state

    def push_front(self, name: str) -> None:
        state = self.states[name]
        state.preempt(0.0)
        self.queue.push_front(state)

    def order(self) -> list[str]:
        self.queue.check()
        return [state.id for state in self.queue.candidates()]


def test_one_tenant_is_served_in_the_order_of_arrival() -> None:
    waiting = Waiting()
    for name in "cab":
        waiting.push(name)

    assert waiting.order() == ["c", "a", "b"]
    assert waiting.order() == ["c", "a", "b"], "looking changes nothing"


def test_a_lower_priority_number_goes_first() -> None:
    waiting = Waiting()
    waiting.push("late", priority=5)
    waiting.push("normal")
    waiting.push("first", priority=-1)
    waiting.push("normal too")

    assert waiting.order() == ["first", "normal", "normal too", "late"]


def test_a_preempted_request_goes_before_all_new_ones_of_its_priority() -> None:
    waiting = Waiting()
    for name, priority in [("a", 0), ("b", 0), ("c", 1), ("d", 0)]:
        waiting.queue.remove(waiting.push(name, priority=priority))
    waiting.push("new")
    waiting.push("new c", priority=1)

    for name in "dabc":
        waiting.push_front(name)

    assert waiting.order() == ["a", "b", "d", "new", "c", "new c"]


def test_the_first_request_of_every_tenant_is_tried_before_any_second_one() -> None:
    waiting = Waiting()
    for name, tenant in [("a1", "a"), ("a2", "a"), ("b1", "b"), ("b2", "b"), ("c1", "c")]:
        waiting.push(name, tenant)
    waiting.shares.charge("a", input_tokens=1)

    assert waiting.order() == ["b1", "c1", "a1", "b2", "a2"]


def test_a_tenant_that_was_just_charged_falls_back() -> None:
    waiting = Waiting()
    for name, tenant in [("a1", "a"), ("a2", "a"), ("b1", "b"), ("b2", "b")]:
        waiting.push(name, tenant)

    order = []
    for state in waiting.queue.candidates():
        order.append(str(state.id))
        waiting.queue.remove(state)
        waiting.shares.charge(state.request.tenant, input_tokens=5)

    assert order == ["a1", "b1", "a2", "b2"]
    assert len(waiting.queue) == 0
    waiting.queue.check()


def test_a_walk_may_stop_anywhere_and_nobody_is_lost() -> None:
    waiting = Waiting()
    for name, tenant in [("a1", "a"), ("b1", "b"), ("a2", "a"), ("c1", "c")]:
        waiting.push(name, tenant)

    for length in range(4):
        for count, _ in enumerate(waiting.queue.candidates()):
            if count == length:
                break
        waiting.push(f"more{length}", "ab"[length % 2])

    assert waiting.order()[:3] == ["a1", "b1", "c1"]
    assert len(waiting.order()) == 8


def test_a_tenant_that_comes_late_is_put_level_with_those_that_waited() -> None:
    waiting = Waiting()
    waiting.push("a1", "a")
    waiting.push("a2", "a")
    waiting.shares.charge("a", input_tokens=100)

    waiting.push("b1", "b")

    assert waiting.shares.served("b") == 100
    assert waiting.order() == ["a1", "b1", "a2"]


def test_removed_requests_are_not_tried() -> None:
    waiting = Waiting()
    for name, tenant in [("a1", "a"), ("a2", "a"), ("b1", "b"), ("c1", "c")]:
        waiting.push(name, tenant)

    for name in ("a1", "b1"):
        waiting.queue.remove(waiting.states[name])

    assert waiting.order() == ["a2", "c1"]
    assert waiting.states["b1"].id not in waiting.queue


def test_expired_requests_are_found_in_the_order_of_their_deadlines() -> None:
    waiting = Waiting()
    waiting.push("late", deadline_s=3.0)
    waiting.push("soon", deadline_s=1.0)
    waiting.push("never")
    waiting.queue.remove(waiting.push("gone", deadline_s=0.5))

    assert [state.id for state in waiting.queue.take_expired(1.0)] == []
    assert [state.id for state in waiting.queue.take_expired(5.0)] == ["soon", "late"]
    assert waiting.queue.take_expired(9.0) == []


def test_requests_that_come_and_go_leave_nothing_behind() -> None:
    waiting = Waiting()
    waiting.push("stays", "x")
    for index in range(1000):
        state = waiting.push(f"r{index}", f"t{index % 7}", index % 3, deadline_s=1e9)
        waiting.queue.remove(state)

    assert len(waiting.queue._deadlines) < 100
    assert len(waiting.queue._levels) == 1
    assert len(waiting.queue._levels[0]._heap) < 100


def test_a_small_request_may_pass_a_large_one_so_many_times_and_no_more() -> None:
    bench = Bench(num_blocks=10, max_skips=3)
    bench.add(make_request("runs", 60, max_tokens=60))
    bench.step()
    bench.add(make_request("large", 140))
    bench.add(*(make_request(f"small{index}", 3, max_tokens=2) for index in range(6)))

    assert list(sizes(bench.step())) == ["runs", "small0", "small1", "small2"]
    bench.step(4)
    assert all(not admitted(plan) for plan in bench.plans[2:]), "they wait behind it now"
    bench.run()

    order = [name for plan in bench.plans for name in admitted(plan)]
    assert order[4] == "large"
    bench.assert_text_as_alone("large", 4)


def test_without_skips_the_order_of_arrival_is_strict() -> None:
    bench = Bench(num_blocks=10, max_skips=0)
    bench.add(make_request("runs", 60, max_tokens=9))
    bench.step()
    bench.add(make_request("large", 140), make_request("small", 3))

    bench.run()

    assert [name for plan in bench.plans for name in admitted(plan)] == ["runs", "large", "small"]


def test_a_large_request_of_one_tenant_does_not_hide_the_small_one_of_another() -> None:
    bench = Bench(num_blocks=10)
    bench.add(make_request("runs", 60, max_tokens=9))
    bench.step()
    bench.add(*(make_request(f"large{i}", 140, tenant="a") for i in range(LOOKAHEAD + 5)))
    bench.add(make_request("small", 3, tenant="b"))

    assert admitted(bench.step()) == ["small"]


def test_a_step_gives_up_after_so_many_requests_that_do_not_fit() -> None:
    bench = Bench(num_blocks=10)
    bench.add(make_request("runs", 60, max_tokens=9))
    bench.step()
    bench.add(*(make_request(f"large{i}", 140) for i in range(LOOKAHEAD)))
    bench.add(make_request("small", 3))

    assert admitted(bench.step()) == []


@pytest.mark.parametrize("num_tenants", [1, 100])
def test_a_step_costs_the_same_however_many_requests_wait(num_tenants: int) -> None:
    def num_calls(num_waiting: int) -> int:
        bench = Bench(num_blocks=10)
        bench.add(make_request("runs", 60, max_tokens=90))
        bench.step()
        for index in range(num_waiting):
            bench.add(make_request(f"w{index}", 140, tenant=f"t{index % num_tenants}"))
        plan = bench.scheduler.plan(0.0)
        assert plan is not None
        bench.scheduler.commit(plan, bench.runner.run(plan), 0.0)
        calls = 0

        def count(frame: FrameType, event: str, arg: object) -> None:
            nonlocal calls
            calls += event == "call"

        sys.setprofile(count)
        bench.scheduler.plan(0.0)
        sys.setprofile(None)
        return calls

    assert num_calls(1_500) <= 1.1 * num_calls(150)
