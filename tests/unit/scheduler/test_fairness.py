from tests.fakes import make_request
from tests.unit.scheduler.helpers import Bench, admitted

from kokuban.scheduler import fairness
from kokuban.scheduler.fairness import TenantShares


def test_output_tokens_count_twice() -> None:
    shares = TenantShares()
    shares.arrive("a")

    shares.charge("a", input_tokens=10, output_tokens=3)

    assert shares.served("a") == 16


def test_a_tenant_that_comes_back_from_idle_has_saved_up_nothing() -> None:
    shares = TenantShares()
    for tenant in ("busy", "idle"):
        shares.arrive(tenant)
    shares.charge("busy", input_tokens=1000)

    shares.lift("idle", least=1000)

    assert shares.served("idle") == 1000


def test_a_lift_takes_nothing_from_who_was_served_more() -> None:
    shares = TenantShares()
    shares.arrive("a")
    shares.charge("a", input_tokens=70)
    shares.raise_floor(50)

    shares.lift("a", least=60)
    shares.arrive("new")

    assert shares.served("a") == 70
    assert shares.served("new") == 50


def test_idle_tenants_are_remembered_up_to_a_limit() -> None:
    shares = TenantShares()
    shares.arrive("stays")
    for index in range(fairness.MAX_IDLE_TENANTS + 5):
        shares.arrive(f"t{index}")
        shares.charge(f"t{index}", input_tokens=1)
        shares.leave(f"t{index}")

    assert shares.num_known == fairness.MAX_IDLE_TENANTS + 1
    assert shares.served("t4") == 0
    assert shares.served("t5") == 1


def test_a_tenant_with_two_requests_is_known_until_both_have_left() -> None:
    shares = TenantShares()
    shares.arrive("a")
    shares.arrive("a")
    shares.charge("a", input_tokens=9)
    shares.leave("a")

    shares.charge("a", input_tokens=1)

    assert shares.served("a") == 10


def test_two_tenants_take_turns_although_one_asked_first_and_often() -> None:
    bench = Bench(max_running=1)
    bench.add(*(make_request(f"a{index}", max_tokens=2, tenant="a") for index in range(4)))
    bench.add(*(make_request(f"b{index}", max_tokens=2, tenant="b") for index in range(2)))

    bench.run()

    order = [name for plan in bench.plans for name in admitted(plan)]
    assert order == ["a0", "b0", "a1", "b1", "a2", "a3"]


def test_shares_go_by_tokens_and_not_by_requests() -> None:
    """A tenant whose requests are four times as large gets a quarter as many in."""
    bench = Bench(max_running=1)
    bench.add(*(make_request(f"a{i}", 38, max_tokens=1, tenant="a") for i in range(3)))
    bench.add(*(make_request(f"b{i}", 8, max_tokens=1, tenant="b") for i in range(8)))

    bench.run()

    order = "".join(name[0] for plan in bench.plans for name in admitted(plan))
    assert order == "abbbbabbbba"


def test_the_tokens_that_two_backlogged_tenants_get_never_drift_apart() -> None:
    bench = Bench(max_running=2, token_budget=16)
    for index in range(40):
        size = 1 + index * 7 % 30
        bench.add(make_request(f"a{index}", size, max_tokens=1 + index % 5, tenant="a"))
        bench.add(make_request(f"b{index}", 30, max_tokens=9, tenant="b"))
    shares = bench.scheduler._shares

    largest = 0
    while sum(name[0] == "b" for plan in bench.plans for name in admitted(plan)) < 20:
        bench.step()
        largest = max(largest, abs(shares.served("a") - shares.served("b")))

    # Source: VTC, theorem 4.4: twice the larger of one input and of what can run at once.
    assert 0 < largest <= 2 * 2 * (30 + 2 * 9)
