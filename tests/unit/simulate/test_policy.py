"""The policy alone: hits counted by hand on small traces."""

from collections.abc import Sequence

import pytest

from kokuban.simulate.policy import PolicyReplay, PolicyResult, Worth
from kokuban.simulate.trace import Trace, TraceRequest, make_trace


def trace(*prompts: Sequence[int], tokens: int = 4, scopes: Sequence[str] = ()) -> Trace:
    """Full blocks of four tokens, or `tokens` in the last one."""
    return make_trace(
        "t",
        4,
        [
            TraceRequest(
                arrival_s=0.0,
                prompt_tokens=4 * (len(ids) - 1) + tokens,
                output_tokens=1,
                block_ids=tuple(ids),
                scope=scopes[place] if scopes else "",
            )
            for place, ids in enumerate(prompts)
        ],
    )


def replay_policy(
    requests: Trace, capacity_blocks: int, worth: Worth | None = None
) -> PolicyResult:
    return PolicyReplay(requests).run(capacity_blocks, worth)


def test_a_request_hits_the_leading_run_of_what_is_there() -> None:
    result = replay_policy(trace([1, 2, 3], [1, 2, 4], [9, 2, 3]), 0)

    assert (result.hit_blocks, result.num_blocks, result.capacity_blocks) == (2, 9, 5)
    assert result.hit_rate == pytest.approx(2 / 9)


def test_the_least_recent_block_is_evicted_and_a_hit_is_recent() -> None:
    """Room for three: 1 is touched again, so that 2 makes room for 4."""
    assert replay_policy(trace([1], [2], [3], [1], [4], [1], [2]), 3).hit_blocks == 2
    assert replay_policy(trace([1], [2], [3], [1], [4], [1], [2]), 2).hit_blocks == 1


def test_blocks_are_touched_in_the_order_of_the_prompt() -> None:
    """The head of 1, 2, 3 is the least recent and goes first; nothing behind it can be hit."""
    assert replay_policy(trace([1, 2, 3], [4], [1, 2, 3]), 3).hit_blocks == 0


def test_blocks_that_are_hit_are_touched_in_the_order_of_the_prompt() -> None:
    """After the second 1, 2, 3 the least recent one is 1."""
    assert replay_policy(trace([1, 2, 3], [1, 2, 3], [4], [1]), 3).hit_blocks == 3
    assert replay_policy(trace([1, 2, 3], [1, 2, 3], [4], [3]), 3).hit_blocks == 4


def test_a_request_longer_than_the_pool_evicts_its_own_beginning() -> None:
    result = replay_policy(trace([1, 2, 3, 4], [3, 4]), 2)

    assert (result.hit_blocks, result.num_blocks) == (2, 6)


def test_touched_tail_first_a_request_keeps_its_head() -> None:
    """4 takes the place of 3."""
    result = PolicyReplay(trace([1, 2, 3], [4], [1, 2, 3])).run(3, tail_first=True)

    assert result.hit_blocks == 2


def test_a_block_that_is_there_behind_a_miss_takes_no_other_one() -> None:
    """9 takes the place of 3; 2 is there, so that 5 stays."""
    assert replay_policy(trace([3], [5], [2], [9, 2], [5]), 3).hit_blocks == 1


def test_names_of_two_scopes_are_two_contents() -> None:
    assert replay_policy(trace([1], [1], scopes=("a", "b")), 0).hit_blocks == 0
    assert replay_policy(trace([1], [1], scopes=("a", "a")), 0).hit_blocks == 1


def test_rates_are_also_told_by_tokens_by_full_blocks_and_by_request() -> None:
    """Prompts of 4 + 1 tokens: the second one is there whole, the third not at all."""
    result = replay_policy(trace([1, 2], [1, 2], [3, 4], tokens=1), 0)

    assert (result.hit_tokens, result.num_tokens) == (5, 15)
    assert (result.hit_full_blocks, result.num_full_blocks) == (1, 3)
    assert result.token_hit_rate == pytest.approx(1 / 3)
    assert result.full_block_hit_rate == pytest.approx(1 / 3)
    assert result.mean_request_rate == pytest.approx(1 / 3)


def test_the_cost_aware_policy_keeps_what_is_dear() -> None:
    """1 has been used three times, so that 2 and then 3 make room, although 1 is older."""
    requests = trace([1], [1], [1], [2], [3], [4], [1])

    assert replay_policy(requests, 2).hit_blocks == 2
    result = replay_policy(requests, 2, worth=lambda index: 1.0)
    assert (result.hit_blocks, result.eviction) == (3, "cost")


def test_the_cost_aware_policy_gives_up_a_tail_before_its_head() -> None:
    result = replay_policy(trace([1, 2, 3], [4], [1, 2]), 3, worth=lambda index: 1.0 + index)

    assert result.hit_blocks == 2
