"""What several choices of several prompts cost together."""

from kokuban.core.step import Usage
from kokuban.server.openai_responses import PromptDetails, Receipt
from kokuban.server.receipt import merge, usage_body


def test_nothing_told_is_nothing() -> None:
    assert merge({}, 2) is None


def test_one_choice_is_what_it_is() -> None:
    usage = Usage(
        10, 3, cached_tokens=6, cached_ram_tokens=2, cached_disk_tokens=1, cache_write_tokens=4,
        preemptions=1, recomputed_tokens=5, queue_s=0.1, prefill_s=0.2, decode_s=0.3,
    )  # fmt: skip

    assert merge({0: usage}, 1) == usage


def test_choices_share_what_was_found_and_add_up_what_they_did() -> None:
    """Two prompts with two choices each: choices 0 and 2 are the first of theirs."""
    usages = {
        0: Usage(
            10, 1, 4, 3, 1, cache_write_tokens=6, preemptions=1, recomputed_tokens=7, queue_s=0.1,
            prefill_s=0.9,
        ),
        1: Usage(10, 2, 9, preemptions=1, queue_s=0.4, prefill_s=0.1, decode_s=0.2),
        2: Usage(20, 3, 8, 0, 5, cache_write_tokens=12, recomputed_tokens=2, decode_s=0.8),
        3: Usage(20, 4, 19, prefill_s=0.3),
    }  # fmt: skip

    assert merge(usages, 2) == Usage(
        prompt_tokens=30, output_tokens=10, cached_tokens=12, cached_ram_tokens=3,
        cached_disk_tokens=6, cache_write_tokens=18, preemptions=2, recomputed_tokens=9,
        queue_s=0.4, prefill_s=0.9, decode_s=0.8,
    )  # fmt: skip


def test_tokens_that_were_written_twice_count_once() -> None:
    usages = {0: Usage(10, 1, 4, cache_write_tokens=6), 1: Usage(10, 1, 0, cache_write_tokens=3)}

    merged = merge(usages, 2)

    assert merged is not None
    assert merged.cache_write_tokens == 6


def test_while_the_first_choice_has_told_nothing_nothing_counts_as_found() -> None:
    merged = merge({1: Usage(10, 1, 9, cache_write_tokens=1)}, 2)

    assert merged is not None
    assert (merged.cached_tokens, merged.cache_write_tokens) == (0, 0)


def test_the_body_parts_what_was_found_by_tier() -> None:
    cost = Usage(
        0, 0, 10, 3, 2, cache_write_tokens=5, preemptions=1, recomputed_tokens=4, queue_s=0.0015,
        drafted_tokens=9, accepted_tokens=6,
        prefill_s=0.25, decode_s=1.5,
    )  # fmt: skip

    body = usage_body(12, 7, cost)

    assert (body.prompt_tokens, body.completion_tokens, body.total_tokens) == (12, 7, 19)
    assert body.prompt_tokens_details == PromptDetails(10, 5)
    assert body.kokuban == Receipt(
        cached_pool_tokens=5, cached_ram_tokens=3, cached_disk_tokens=2, resumed_from="disk",
        queue_ms=1.5, prefill_ms=250.0, decode_ms=1500.0, preemptions=1, recomputed_tokens=4,
        accepted_prediction_tokens=6, rejected_prediction_tokens=3,
    )  # fmt: skip


def test_a_request_resumes_from_the_lowest_tier_that_it_read() -> None:
    costs = (Usage(1, 1), Usage(9, 1, 4), Usage(9, 1, 4, 1), Usage(9, 1, 4, 1, 1), None)

    found = [usage_body(9, 1, cost).kokuban.resumed_from for cost in costs]

    assert found == [None, "pool", "ram", "disk", None]


def test_after_a_pause_the_engine_says_where_a_session_was_resumed_from() -> None:
    """The choice that began first knows it; what was found in the cache says less."""
    usages = {0: Usage(9, 1, 4, 4), 1: Usage(9, 1, 8, resumed_from="recompute")}

    merged = merge(usages, 2)

    assert merged is not None
    assert merged.resumed_from == "recompute"
    assert usage_body(9, 2, merged).kokuban.resumed_from == "recompute"
    assert usage_body(9, 2, Usage(9, 2, 4, 4, 2)).kokuban.resumed_from == "disk"
