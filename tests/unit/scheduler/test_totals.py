"""What the scheduler counts of its steps."""

import pytest
from tests.fakes import make_request
from tests.unit.scheduler.helpers import Bench

from kokuban.core.step import STEP_SIZES


def counted(bench: Bench) -> tuple[dict[int, int], int]:
    """Steps by the limit of their sizes, without those of which there are none; and all tokens."""
    totals = bench.scheduler.stats().totals
    limits = (*STEP_SIZES, 0)
    sizes = {limit: num for limit, num in zip(limits, totals.step_sizes, strict=True) if num}
    return sizes, totals.step_tokens


def test_a_step_counts_by_its_prompt_tokens_and_the_tokens_that_it_brings() -> None:
    """As in vLLM, but for cached tokens: a prompt's last step has one more than it computes."""
    bench = Bench(token_budget=16)
    bench.add(make_request("one", 20, max_tokens=3))

    bench.run()

    # 16 of the prompt; 4 of it and the first token; and two tokens, one each.
    assert counted(bench) == ({1: 2, 8: 1, 16: 1}, 16 + 4 + 1 + 2)


@pytest.mark.parametrize(("num_tokens", "limit"), [(7, 8), (8, 16), (15, 16), (16, 32)])
def test_a_limit_itself_still_counts_below_it(num_tokens: int, limit: int) -> None:
    bench = Bench(token_budget=64)
    bench.add(make_request("one", num_tokens, max_tokens=1))

    bench.run()

    assert counted(bench) == ({limit: 1}, num_tokens + 1)
