"""What comes up from below the pool, to the token."""

import pytest
from tests.fakes import make_request
from tests.unit.scheduler.helpers import Bench

from kokuban.core.request import FinishReason


@pytest.mark.parametrize("windows", [(None,), (None, 40)])
@pytest.mark.parametrize("num_tokens", [31, 32, 33, 47, 48])
def test_a_prompt_that_is_asked_again_comes_up_but_for_its_last_token(
    windows: tuple[int | None, ...], num_tokens: int
) -> None:
    """Also when it ends where a block ends: the full block lends all but that token."""
    bench = Bench(8 * len(windows), prefix_cache=True, num_slots=100, windows=windows)
    prompt = make_request("one", num_tokens).prompt_token_ids
    bench.add(make_request("one", prompt=prompt, max_tokens=1))
    bench.run()
    bench.idle()
    bench.add(make_request("other", 100, max_tokens=1))
    bench.run()

    bench.add(make_request("again", prompt=prompt, max_tokens=3))
    bench.run()

    usage = bench.last_event("again").usage
    assert usage is not None
    assert usage.cached_tokens == num_tokens - 1
    assert usage.cached_ram_tokens > 0
    bench.assert_text_as_alone("again", 3)


def test_a_prompt_that_is_scored_reads_nothing_from_below() -> None:
    """Bugbank B61: positions that come up have no logits."""
    bench = Bench(8, prefix_cache=True, num_slots=100, disk=True)
    prompt = make_request("one", 40).prompt_token_ids
    bench.add(make_request("one", prompt=prompt, max_tokens=1))
    bench.run()
    bench.idle()
    bench.add(make_request("other", 100, max_tokens=1))
    bench.run()

    bench.add(make_request("scored", prompt=prompt, max_tokens=1, prompt_logprobs=0))
    bench.run()

    usage = bench.last_event("scored").usage
    assert usage is not None
    assert usage.cached_tokens == 0
    assert bench.scores("scored") == list(prompt[1:])


def test_a_deadline_passes_while_a_request_waits_for_the_disk() -> None:
    bench = Bench(8, prefix_cache=True, num_slots=4, disk=True)
    prompt = make_request("one", 60).prompt_token_ids
    bench.add(make_request("one", prompt=prompt, max_tokens=1))
    bench.run()
    bench.idle()
    for name in ("x", "y"):
        bench.add(make_request(name, 100, max_tokens=1))
        bench.run()
        bench.idle()

    bench.add(make_request("late", prompt=prompt, max_tokens=1, deadline_s=1.0))
    assert bench.scheduler.plan(bench.clock()) is None, "it waits for the disk"
    bench.clock.advance(2.0)
    events = bench.scheduler.expire(bench.clock())
    bench.idle()

    assert [event.finish for event in events] == [FinishReason.ERROR]
    assert bench.tiers is not None
    assert bench.tiers.num_pinned == 0
    assert not bench.scheduler.has_work
