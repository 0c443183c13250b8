"""One case for each reason, at the borders of blocks."""

import typing
from dataclasses import replace

import pytest

from kokuban.server.nearest import Nearest, Past
from kokuban.server.verdict import MESSAGES, Lookup, Reason, plain_reason, reason_of_miss

LOOKUP = Lookup(
    num_prompt=101, num_found=40, admitted_s=10.0, block_size=16, is_cache_on=True, scores=False
)


def near(
    common: int, available: int | None = None, *, ends: bool = False, ended: bool = True
) -> Nearest:
    past = Past("r", "", [], {}, 1, 1.0, 5.0 if ended else None)
    num_available = common if available is None else available
    return Nearest(past, 0, None, common, num_available, ends, ended, b"")


def reason(
    own: Nearest | None, elsewhere: Nearest | None = None, *, found: int = 40,
    resets: tuple[float, ...] = (),
) -> Reason:  # fmt: skip
    return reason_of_miss(replace(LOOKUP, num_found=found), own, elsewhere, resets)


def test_each_reason_has_its_sentence() -> None:
    assert set(MESSAGES) == set(typing.get_args(Reason))


def test_all_but_the_last_token_is_a_hit() -> None:
    assert plain_reason(replace(LOOKUP, num_found=100)) == "hit"
    assert plain_reason(replace(LOOKUP, num_found=99)) is None
    assert plain_reason(replace(LOOKUP, num_found=100, is_cache_on=False)) == "hit"


def test_a_cache_that_is_not_read_is_the_reason() -> None:
    assert plain_reason(replace(LOOKUP, is_cache_on=False, scores=True)) == "cache_off"
    assert plain_reason(replace(LOOKUP, scores=True)) == "scored"


@pytest.mark.parametrize(
    ("common", "expected"), [(40, "text_changed"), (47, "text_changed"), (48, "evicted")]
)
def test_text_that_changed_is_told_from_kv_that_is_gone_by_the_block(
    common: int, expected: str
) -> None:
    assert reason(near(common)) == expected


def test_a_request_that_goes_on_from_another_is_new_text() -> None:
    assert reason(near(41, 40, ends=True)) == "new_text"
    assert reason(near(60, 59, ends=True)) == "evicted"


@pytest.mark.parametrize("found", [0, 96, 99])
def test_the_same_text_again_can_only_have_been_evicted(found: int) -> None:
    assert reason(near(101), found=found) == "evicted"
    assert reason(near(100, ends=True), found=found) == "evicted"


@pytest.mark.parametrize(
    ("at_s", "expected"), [(4.9, "evicted"), (5.0, "reset"), (10.0, "reset"), (10.1, "evicted")]
)
def test_a_reset_between_the_two_is_told_from_eviction(at_s: float, expected: str) -> None:
    assert reason(near(60), resets=(1.0, at_s)) == expected


def test_what_a_running_request_holds_outlives_a_reset() -> None:
    assert reason(near(60, ended=False), resets=(6.0,)) == "evicted"


def test_a_request_that_was_still_running_had_not_computed_it_yet() -> None:
    assert reason(near(60, 0, ended=False)) == "concurrent"
    assert reason(near(47, 0, ended=False)) == "text_changed"
    assert reason(near(101, 101, ended=False), found=96) == "concurrent"


def test_another_salt_is_named_only_if_it_had_at_least_a_block_more() -> None:
    assert reason(None, near(48)) == "other_scope"
    assert reason(near(40), near(48)) == "other_scope"
    assert reason(near(40), near(47)) == "text_changed"
    assert reason(near(60), near(90)) == "evicted"
    assert reason(None, near(90, 0, ended=False)) == "no_prefix"


def test_nothing_like_it_is_no_prefix() -> None:
    assert reason(None, found=0) == "no_prefix"
