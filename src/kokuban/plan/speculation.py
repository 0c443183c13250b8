"""What speculation is worth: expected tokens, speed-up, and how many drafts to compute in a step.

Planning formula F22, for draft tokens that are right independently of each other. A draft token
counts only if all before it in its request were right, so the j-th one (from 1) brings chance^j
tokens.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from heapq import heapify, heapreplace

MAX_DRAFTS_A_STEP = 64
"""Over all requests: with more rows than this, steps are bound by arithmetic on every CPU."""


def expected_tokens(chance: float, num_drafts: int) -> float:
    """Tokens that a step brings a request: the accepted drafts and the one sampled after them."""
    return sum(chance**count for count in range(num_drafts + 1))


def speed_up(chance: float, num_drafts: int, *, draft_cost: float, step_ratio: float) -> float:
    """How many times faster a request gets its tokens.

    Args:
        draft_cost: time of guessing one token, in steps of the target model.
        step_ratio: time of a step over num_drafts + 1 tokens, in steps over one.
    """
    return expected_tokens(chance, num_drafts) / (num_drafts * draft_cost + step_ratio)


def choose_lengths(
    chances: Sequence[float],
    most: Sequence[int],
    *,
    num_rows: int,
    budget: int,
    step_s: Callable[[int], float],
    round_s: Callable[[int], float],
) -> list[int]:
    """The numbers of drafts with which a step is expected to bring most tokens a second.

    Drafts are taken in the order of what they are expected to bring; the best beginning of that
    order wins, so that the time of a step need not grow evenly with its tokens.

    Args:
        chances: for each request how often a draft is right, if those before it were.
        most: for each request how many drafts it may get.
        num_rows: requests that get a token from the step in any case.
        budget: drafts that the step has room for.
        step_s: seconds of the step when so many drafts are added.
        round_s: seconds of guessing one token for each of so many requests.
    """
    lengths = [0] * len(most)
    # By what the next draft brings; of equals the first request goes first.
    heap = [(-chances[i], i) for i, count in enumerate(most) if count > 0]
    heapify(heap)
    tokens, drafting_s = float(num_rows), 0.0
    rounds = [0] * max(most, default=0)
    best_rate, best = tokens / step_s(0), 0
    order: list[int] = []
    while heap and len(order) < min(budget, MAX_DRAFTS_A_STEP):
        chance, i = heap[0]
        drafting_s += round_s(rounds[lengths[i]] + 1) - _round_s(round_s, rounds[lengths[i]])
        rounds[lengths[i]] += 1
        lengths[i] += 1
        order.append(i)
        tokens -= chance
        rate = tokens / (step_s(len(order)) + drafting_s)
        if rate > best_rate:
            best_rate, best = rate, len(order)
        # What is used up sinks to the end of the heap, where nothing is expected of it.
        heapreplace(heap, (chance * chances[i] if lengths[i] < most[i] else 1.0, i))
        if heap[0][0] > 0:
            break
    counts = Counter(order[:best])
    return [counts[i] for i in range(len(most))]


def _round_s(round_s: Callable[[int], float], num_requests: int) -> float:
    return round_s(num_requests) if num_requests else 0.0
