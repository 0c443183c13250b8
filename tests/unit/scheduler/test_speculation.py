"""Draft tokens in plans: where they come from, what they may take, and what becomes of them."""

import pytest
from tests.fakes import FakeProposer, continuation, make_request
from tests.unit.scheduler.helpers import Bench, sizes

from kokuban.core.request import FinishReason, RequestId


def test_drafts_that_are_right_save_steps() -> None:
    bench = Bench(proposer=FakeProposer())
    bench.add(make_request("a", 5, max_tokens=35))

    bench.run()

    bench.assert_text_as_alone("a", 35)
    # The prompt's step gives 1 token, the next two 17 each.
    assert [sizes(plan) for plan in bench.plans] == [{"a": 5}, {"a": 17}, {"a": 17}]
    assert [plan.chunks[0].num_drafts for plan in bench.plans] == [0, 16, 16]


def test_drafts_that_are_wrong_change_no_text_and_are_given_up() -> None:
    proposer = FakeProposer(percent=0)
    bench = Bench(proposer=proposer)
    bench.add(make_request("a", 5, max_tokens=40))

    bench.run()

    bench.assert_text_as_alone("a", 40)
    usage = bench.last_event("a").usage
    assert usage is not None
    assert usage.accepted_tokens == 0
    assert usage.drafted_tokens > 0
    assert len(bench.plans) == 40


def test_the_receipt_and_the_totals_count_drafts() -> None:
    bench = Bench(proposer=FakeProposer(percent=60))
    bench.add(make_request("a", 5, max_tokens=60))

    bench.run()

    totals = bench.scheduler.stats().totals
    usage = bench.last_event("a").usage
    assert usage is not None
    planned = [plan.chunks[0].num_drafts for plan in bench.plans]
    assert totals.drafts == sum(count > 0 for count in planned)
    assert usage.drafted_tokens == totals.drafted_tokens == sum(planned)
    # Each step says one token of its own, and those that were guessed right.
    assert usage.accepted_tokens == totals.accepted_tokens == 60 - len(bench.plans)
    assert 0 < usage.accepted_tokens < usage.drafted_tokens


def test_no_draft_goes_beyond_max_tokens() -> None:
    bench = Bench(proposer=FakeProposer())
    bench.add(make_request("a", 5, max_tokens=4))

    bench.run()

    assert [plan.chunks[0].num_drafts for plan in bench.plans] == [0, 2]
    assert bench.finish("a") is FinishReason.LENGTH
    bench.assert_text_as_alone("a", 4)


def test_one_token_more_needs_no_draft() -> None:
    proposer = FakeProposer()
    bench = Bench(proposer=proposer)
    bench.add(make_request("a", 5, max_tokens=2))

    bench.run()

    assert proposer.num_wanted == []


def test_an_end_token_among_the_accepted_ones_is_the_last() -> None:
    prompt = make_request("a", 5).prompt_token_ids
    said = continuation(prompt, 6)
    bench = Bench(proposer=FakeProposer(), prefix_cache=True)
    bench.add(make_request("a", 5, max_tokens=40, end_token_ids=[said[-1]]))

    bench.run()

    assert bench.tokens("a") == said
    assert bench.finish("a") is FinishReason.STOP
    usage = bench.last_event("a").usage
    assert usage is not None
    assert (usage.output_tokens, usage.accepted_tokens) == (6, 5)


def test_drafts_take_what_is_left_of_the_budget() -> None:
    bench = Bench(proposer=FakeProposer(), token_budget=20)
    bench.add(make_request("a", 3, max_tokens=40))
    bench.step()
    bench.add(make_request("b", 15, max_tokens=1))

    plan = bench.step()

    # One token of "a" and 15 of "b" leave room for four.
    assert sizes(plan) == {"a": 5, "b": 15}
    bench.run()
    bench.assert_text_as_alone("a", 40)


def test_a_full_budget_leaves_no_room_for_drafts() -> None:
    bench = Bench(proposer=FakeProposer(), token_budget=16)
    bench.add(make_request("a", 3, max_tokens=40))
    bench.step()
    bench.add(make_request("b", 40, max_tokens=1))

    assert sizes(bench.step()) == {"a": 1, "b": 15}


def test_drafts_preempt_nobody_and_stay_within_the_last_block_when_the_pool_is_full() -> None:
    bench = Bench(5, proposer=FakeProposer())
    bench.add(make_request("a", 20, max_tokens=12), make_request("b", 20, max_tokens=12))
    bench.step()

    plan = bench.step()

    # Both hold two blocks of 16, with room for 12; the fifth is kept for who needs it next.
    assert sizes(plan) == {"a": 11, "b": 11}
    bench.run()
    assert bench.preemptions() == {"a": 0, "b": 0}
    bench.assert_text_as_alone("a", 12)
    bench.assert_text_as_alone("b", 12)


def test_a_nearly_full_pool_plans_as_without_speculation() -> None:
    def run(proposer: FakeProposer | None) -> Bench:
        bench = Bench(7, max_running=4, proposer=proposer)
        bench.add(*(make_request(name, 20, max_tokens=30) for name in "abcd"))
        bench.run()
        return bench

    without, wrong = run(None), run(FakeProposer(percent=0))

    assert any(plan.preempted for plan in without.plans)
    # Same admissions, preemptions and ends, step for step: drafts took nothing from anybody.
    assert [
        (plan.admitted, plan.preempted, plan.ended, [chunk.start for chunk in plan.chunks])
        for plan in wrong.plans
    ] == [
        (plan.admitted, plan.preempted, plan.ended, [chunk.start for chunk in plan.chunks])
        for plan in without.plans
    ]
    assert wrong.scheduler.stats().totals.drafted_tokens > 0
    for name in "abcd":
        wrong.assert_text_as_alone(name, 30)


def test_blocks_that_wrong_drafts_brought_are_free_again_at_once() -> None:
    bench = Bench(10, proposer=FakeProposer(percent=0))
    bench.add(make_request("a", 15, max_tokens=30))
    bench.step()

    plan = bench.step()

    assert plan.chunks[0].num_drafts == 16
    assert len(plan.chunks[0].new_block_ids[0]) == 1
    assert bench.pool.num_free == 9
    bench.run()
    bench.assert_text_as_alone("a", 30)


def test_only_accepted_tokens_can_be_found_in_the_prefix_cache() -> None:
    def cached_after(proposer: FakeProposer | None) -> list[int]:
        bench = Bench(proposer=proposer, prefix_cache=True)
        first = make_request("a", 20, max_tokens=40)
        bench.add(first)
        bench.run()
        text = [*first.prompt_token_ids, *bench.tokens("a")]
        found = []
        for length in range(21, 60, 3):
            bench.add(make_request(f"b{length}", prompt=[*text[:length], 7], max_tokens=1))
            bench.run()
            usage = bench.last_event(f"b{length}").usage
            assert usage is not None
            found.append(usage.cached_tokens)
        return found

    assert cached_after(FakeProposer(percent=50)) == cached_after(None)


@pytest.mark.parametrize("percent", [0, 50, 100])
@pytest.mark.parametrize("windows", [(None,), (None, 20), (None, 1, 40)])
def test_windows_choices_and_company_change_no_text(
    windows: tuple[int | None, ...], percent: int
) -> None:
    bench = Bench(60, windows=windows, prefix_cache=True, proposer=FakeProposer(percent))
    names = bench.add_choices(make_request("a", 30, max_tokens=50), 3)
    bench.add(make_request("b", 7, max_tokens=70))

    bench.run()

    for name in names:
        bench.assert_text_as_alone(name, 50)
    bench.assert_text_as_alone("b", 70)
    assert bench.pool.num_free == bench.pool.num_blocks


def test_a_cancelled_request_leaves_nothing_behind() -> None:
    proposer = FakeProposer(percent=50)
    bench = Bench(proposer=proposer)
    bench.add(make_request("a", 5, max_tokens=90), make_request("b", 5, max_tokens=90))
    bench.step(3)

    assert bench.scheduler.cancel(RequestId("a"))
    bench.step()

    bench.scheduler.check()
    assert proposer.known == {"b"}
    bench.run()
    assert bench.pool.num_free == bench.pool.num_blocks
    assert proposer.known == set()


def test_a_failed_request_leaves_nothing_behind() -> None:
    proposer = FakeProposer()
    bench = Bench(proposer=proposer)
    bench.add(make_request("a", 5, max_tokens=90))
    bench.step()
    bench.runner.failures[RequestId("a")] = "not finite"

    bench.step()

    assert bench.finish("a") is FinishReason.ERROR
    assert bench.pool.num_free == bench.pool.num_blocks
    assert proposer.known == set()


def test_a_request_without_drafts_is_tried_again_after_a_while() -> None:
    proposer = FakeProposer(percent=0)
    bench = Bench(proposer=proposer, prices=Dear())
    bench.add(make_request("a", 5, max_tokens=150))

    bench.run()

    drafts = [plan.chunks[0].num_drafts for plan in bench.plans]
    assert [step for step, count in enumerate(drafts) if count] == [64, 128]
    assert set(drafts) == {0, 1}


def test_a_large_batch_that_is_bound_by_arithmetic_gets_no_drafts() -> None:
    """F22 with a ratio of (B + m) / B: what a draft costs is what a token costs."""
    proposer = FakeProposer(percent=60)
    bench = Bench(200, token_budget=200, max_running=16, proposer=proposer, prices=Dear())
    bench.add(*(make_request(f"r{i}", 5, max_tokens=40) for i in range(16)))

    bench.run()

    assert bench.scheduler.stats().totals.drafted_tokens == 0


class Dear:
    """Prices of a machine that has nothing to give: twice the tokens take twice the time."""

    def recompute_s(self, start: int, num_tokens: int) -> float:
        return float(num_tokens)

    def restore_s(self, num_blocks: int, num_disk_blocks: int = 0) -> float:
        return 0.0

    def store_s(self, num_blocks: int) -> float:
        return 0.0

    def decode_s(self, context_tokens: int, batch_size: int, num_drafts: int) -> float:
        return float(batch_size + num_drafts)


class Wrong(Dear):
    """A model that takes drafts for much dearer than they are."""

    def decode_s(self, context_tokens: int, batch_size: int, num_drafts: int) -> float:
        return 0.010 + 0.006 * num_drafts


def test_a_price_that_is_wrong_is_found_out_by_trying_more() -> None:
    bench = Bench(proposer=FakeProposer(), prices=Wrong())
    bench.add(make_request("a", 5, max_tokens=600))

    while bench.scheduler.has_requests:
        plan = bench.scheduler.plan(bench.clock())
        assert plan is not None
        result = bench.runner.run(plan)
        bench.clock.advance(0.010 + 0.001 * sum(each.num_drafts for each in plan.chunks))
        bench.events += bench.scheduler.commit(plan, result, bench.clock())
        bench.plans.append(plan)

    drafts = [plan.chunks[0].num_drafts for plan in bench.plans]
    assert max(drafts[:8]) < 8
    assert min(drafts[-10:-1]) >= 12
    bench.assert_text_as_alone("a", 600)


class Even(Dear):
    """Each draft costs a quarter of a step."""

    def decode_s(self, context_tokens: int, batch_size: int, num_drafts: int) -> float:
        return 1.0 + 0.25 * num_drafts


def test_now_and_then_a_step_has_twice_as_many_drafts() -> None:
    bench = Bench(proposer=FakeProposer(percent=80), prices=Even())
    bench.add(make_request("a", 5, max_tokens=100))

    bench.run()

    drafts = [plan.chunks[0].num_drafts for plan in bench.plans]
    # 2 to 8 drafts pay, as chances come and go; steps 8 and 16 have twice what would pay there.
    assert drafts[:18] == [0, 2, 3, 4, 5, 4, 5, 3, 6, 4, 3, 4, 5, 8, 4, 6, 16, 5]
