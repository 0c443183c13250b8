from collections.abc import Sequence

import pytest

from kokuban.core.errors import OutOfBlocks
from kokuban.core.request import NO_BLOCK, BlockId, RequestId
from kokuban.kvcache.eviction import Worth
from kokuban.kvcache.manager import Manager
from kokuban.kvcache.pool import BlockPool
from kokuban.kvcache.prefix import KeySpace

A, B, C = RequestId("a"), RequestId("b"), RequestId("c")
_ = NO_BLOCK


def make_space(block_size: int) -> KeySpace:
    return KeySpace(
        secret=b"0123456789abcdef",
        model_digest=b"model",
        numerics_id="v1",
        kv_dtype="bf16",
        block_size=block_size,
    )


def make_manager(
    num_blocks: int = 10,
    windows: Sequence[int | None] = (None,),
    block_size: int = 16,
    *,
    prefix_cache: bool = False,
    partial_tails: bool = True,
) -> Manager:
    space = make_space(block_size)
    return Manager(
        BlockPool(num_blocks),
        block_size=block_size,
        windows=windows,
        key_space=space if prefix_cache else None,
        partial_tails=partial_tails,
    )


def compute(
    manager: Manager,
    request_id: RequestId,
    tokens: Sequence[int],
    chunk: int = 1000,
    tenant: str = "",
) -> int:
    """Compute all of a sequence in chunks; returns how many tokens were cached."""
    chain = manager.make_chain(tenant)
    cached = manager.find_cached_prefix(chain, tokens)
    manager.begin(request_id, chain, cached)
    computed = cached.num_tokens
    while computed < len(tokens):
        computed = min(computed + chunk, len(tokens))
        manager.grow(request_id, computed)
        manager.advance(request_id, computed, tokens)
        manager.check()
    return cached.num_tokens


def test_a_request_takes_the_blocks_that_its_tokens_need_and_not_one_more() -> None:
    manager = make_manager(num_blocks=250)
    manager.begin(A)

    held = []
    for num_tokens in (300, 304, 305, 317, 320, 321, 1000):
        manager.grow(A, num_tokens)
        held.append(manager.num_held(A))

    assert held == [19, 19, 20, 20, 20, 21, 63]
    assert manager.num_free == 250 - 63


def test_two_requests_of_40_and_20_tokens_interleave_as_in_the_article() -> None:
    manager = make_manager(num_blocks=7)
    manager.begin(A)
    manager.begin(B)

    manager.grow(A, 16)
    manager.grow(B, 20)
    manager.grow(A, 40)

    assert manager.block_table(B) == (1, 2)
    assert manager.block_table(A) == (0, 3, 4)


def test_the_table_0_3_5_of_the_article() -> None:
    manager = make_manager(num_blocks=7)
    for request_id in (A, B, C):
        manager.begin(request_id)

    manager.grow(A, 16)
    manager.grow(B, 20)
    manager.grow(A, 32)
    manager.grow(C, 1)
    manager.grow(A, 40)

    assert manager.block_table(A) == (0, 3, 5)
    assert manager.block_table(B) == (1, 2)


def test_a_table_need_not_be_in_order() -> None:
    """Logical blocks 0, 1, 2 lie in blocks 105, 37, 912 of a pool of 1,000."""
    pool = BlockPool(1000)
    blocks = pool.allocate(1000)
    pool.release([BlockId(105), BlockId(37), BlockId(912)])
    manager = Manager(pool, block_size=16)
    manager.begin(A)

    new = manager.grow(A, 48)

    assert new == ((105, 37, 912),)
    assert manager.block_table(A) == (105, 37, 912)
    assert len(blocks) == 1000


def test_grow_returns_what_no_earlier_call_returned() -> None:
    manager = make_manager(windows=(None, None))
    manager.begin(A)

    assert manager.grow(A, 17) == ((0, 1), (2, 3))
    assert manager.grow(A, 32) == ((), ())
    assert manager.grow(A, 33) == ((4,), (5,))


def test_growth_that_fails_changes_nothing() -> None:
    manager = make_manager(num_blocks=3, windows=(None, None))
    manager.begin(A)
    manager.grow(A, 16)

    with pytest.raises(OutOfBlocks, match="2 blocks wanted, 1 of 3 are free"):
        manager.grow(A, 17)

    assert manager.block_table(A, 0) == (0,)
    assert manager.num_free == 1
    assert manager.grow(A, 16) == ((), ())
    manager.check()


def test_how_far_a_request_can_grow_depends_on_the_groups() -> None:
    manager = make_manager(num_blocks=5, windows=(None, None))
    manager.begin(A)
    manager.grow(A, 10)

    assert manager.num_tokens_fitting(A, 1000) == 32
    assert manager.num_tokens_fitting(A, 20) == 20
    assert manager.can_grow(A, 32)
    assert not manager.can_grow(A, 33)


def test_released_blocks_are_reused_tail_first() -> None:
    pool = BlockPool(4)
    manager = Manager(pool, block_size=16)
    manager.begin(A)
    manager.grow(A, 48)

    manager.release(A)

    assert pool.free_order() == (3, 2, 1, 0)
    assert manager.request_ids == set()


def test_a_request_has_one_table() -> None:
    manager = make_manager()
    manager.begin(A)

    with pytest.raises(AssertionError, match="request a has a block table already"):
        manager.begin(A)


def test_a_window_group_gives_back_blocks_wholly_behind_its_window() -> None:
    manager = make_manager(windows=(None, 20))
    manager.begin(A)
    manager.grow(A, 48)

    # The next token, 35, looks back to token 16: block 1 is needed, block 0 is not.
    manager.advance(A, 34)
    assert manager.block_table(A, 1) == (3, 4, 5)
    manager.advance(A, 35)
    assert manager.block_table(A, 1) == (_, 4, 5)
    manager.advance(A, 48)
    assert manager.block_table(A, 1) == (_, 4, 5)

    assert manager.block_table(A, 0) == (0, 1, 2)
    assert manager.num_held(A) == 5
    assert manager.num_free == 5
    manager.check()


def test_a_window_of_one_token_keeps_the_block_that_is_being_written() -> None:
    manager = make_manager(windows=(1,))
    manager.begin(A)
    manager.grow(A, 32)

    manager.advance(A, 31)
    assert manager.block_table(A) == (_, 1)
    manager.advance(A, 32)
    assert manager.block_table(A) == (_, _)
    assert manager.grow(A, 33) == ((2,),)


@pytest.mark.parametrize(
    ("windows", "num_tokens", "max_chunk", "num_needed"),
    [
        ((None,), 300, 1, 19),
        ((None, None), 300, 1, 38),
        ((512,), 300, 1, 19),
        ((512,), 4000, 1, 33),
        ((512,), 4000, 2048, 161),
        ((None, 512), 4000, 1, 250 + 33),
        ((512, 512, None, 512, 512, 512), 4000, 1, 250 + 5 * 33),
    ],
)
def test_blocks_needed_by_groups(
    windows: Sequence[int | None], num_tokens: int, max_chunk: int, num_needed: int
) -> None:
    manager = make_manager(windows=windows)

    assert manager.num_needed(num_tokens, max_chunk=max_chunk) == num_needed


@pytest.mark.parametrize(
    ("num_blocks", "windows", "max_tokens"),
    [
        (10, (None,), 160),
        (10, (None, None), 80),
        (11, (None, None), 80),
        (10, (None, 17), 16 * 8),
        (1, (None, None), 0),
        (2, (17,), None),
        (1, (17,), 16),
    ],
)
def test_what_one_request_can_hold_with_the_pool_to_itself(
    num_blocks: int, windows: Sequence[int | None], max_tokens: int | None
) -> None:
    assert make_manager(num_blocks, windows).max_tokens_alone == max_tokens


def test_a_lone_request_reaches_its_limit_token_by_token() -> None:
    manager = make_manager(num_blocks=10, windows=(None, 17))
    manager.begin(A)

    for num_tokens in range(1, 16 * 8 + 1):
        manager.grow(A, num_tokens)
        manager.advance(A, num_tokens)

    assert not manager.can_grow(A, 16 * 8 + 1)


def test_without_a_key_space_nothing_is_cached() -> None:
    manager = make_manager()
    assert manager.make_chain("") is None

    compute(manager, A, range(48))

    assert compute(manager, B, range(48)) == 0


@pytest.mark.parametrize(
    ("num_tokens", "num_cached"),
    [(15, 0), (16, 0), (17, 16), (31, 16), (32, 16), (33, 32), (48, 32), (49, 48)],
)
def test_a_hit_of_whole_blocks_leaves_at_least_the_last_token_to_compute(
    num_tokens: int, num_cached: int
) -> None:
    manager = make_manager(num_blocks=20, prefix_cache=True, partial_tails=False)
    compute(manager, A, range(num_tokens))
    manager.release(A, range(num_tokens))

    assert compute(manager, B, range(num_tokens)) == num_cached
    assert compute(manager, C, range(num_tokens + 1)) == num_tokens // 16 * 16


def test_requests_share_blocks_up_to_where_they_differ() -> None:
    manager = make_manager(num_blocks=10, prefix_cache=True)
    compute(manager, A, range(60))

    other = [*range(40), *range(100, 120)]
    chain = manager.make_chain("")
    cached = manager.find_cached_prefix(chain, other)
    assert manager.num_shared(cached) == 2
    manager.begin(B, chain, cached)

    assert manager.grow(B, 60) == ((0, 1, 4, 5),)
    assert manager.block_table(A) == (0, 1, 2, 3)
    assert manager.num_free == 4
    manager.check()


def test_a_preamble_of_500_tokens_is_there_once_for_100_requests() -> None:
    """31 whole blocks are shared, the last 4 tokens lie in a block of each request's own."""
    manager = make_manager(num_blocks=3200, prefix_cache=True)

    for index in range(100):
        compute(manager, RequestId(str(index)), [*range(500), 1000 + index])

    assert 3200 - manager.num_free == 31 + 100
    manager.check()


def test_tenants_do_not_share_blocks() -> None:
    manager = make_manager(prefix_cache=True)
    compute(manager, A, range(40), tenant="one")

    assert compute(manager, B, range(40), tenant="two") == 0
    assert compute(manager, C, range(40), tenant="one") == 32
    assert not set(manager.block_table(A)) & set(manager.block_table(B))


def test_cached_blocks_that_were_free_are_revived() -> None:
    manager = make_manager(num_blocks=4, prefix_cache=True)
    compute(manager, A, range(33))
    manager.release(A, range(33))

    chain = manager.make_chain("")
    cached = manager.find_cached_prefix(chain, range(33))
    assert manager.num_shared(cached) == 0
    assert cached.block_ids == ((0, 1),)

    manager.begin(B, chain, cached)
    assert manager.num_free == 2


def test_tokens_whose_step_failed_are_not_found() -> None:
    manager = make_manager(prefix_cache=True)
    chain = manager.make_chain("")
    manager.begin(A, chain)
    manager.grow(A, 33)
    manager.release(A)

    assert manager.find_cached_prefix(manager.make_chain(""), range(33)).num_tokens == 0


def test_a_window_group_is_hit_if_it_still_has_its_window() -> None:
    manager = make_manager(num_blocks=20, windows=(None, 17), prefix_cache=True)
    compute(manager, A, range(64), chunk=16)

    # Freed behind the window, but not handed out since: still there.
    cached = manager.find_cached_prefix(manager.make_chain(""), range(64))
    assert cached.num_tokens == 63
    assert cached.block_ids == ((0, 2, 4), (_, _, 5))
    assert cached.tail_sources == (6, 7)

    manager.begin(B, None, cached.without_tail())
    assert manager.take_moves() == ()
    assert manager.grow(B, 49) == ((0, 2, 4, 8), (_, _, 5, 9))
    manager.check()


def test_a_hit_goes_as_far_as_every_group_agrees() -> None:
    pool = BlockPool(8)
    space = make_manager(prefix_cache=True)._key_space
    manager = Manager(pool, block_size=16, windows=(None, 17), key_space=space)
    compute(manager, A, range(64), chunk=16)
    assert pool.free_order() == (1, 3, 5)

    # Somebody takes block 3, the second of the window group: its run is broken there, and the
    # group begins again with block 5.
    assert pool.allocate(2) == [1, 3]
    found = manager.find_cached_prefix(manager.make_chain(""), range(33))
    assert found.num_tokens == 0
    found = manager.find_cached_prefix(manager.make_chain(""), range(49))
    assert found.num_tokens == 48


def test_the_check_finds_a_block_that_no_table_accounts_for() -> None:
    pool = BlockPool(3)
    manager = Manager(pool, block_size=16)
    pool.allocate(1)

    with pytest.raises(AssertionError, match="block 0 is in 0 tables but held 1 times"):
        manager.check()


@pytest.mark.parametrize("num_tokens", [1, 2, 15, 16, 17, 31, 32, 33, 48])
def test_a_hit_ends_before_the_last_token_wherever_that_lies(num_tokens: int) -> None:
    manager = make_manager(num_blocks=20, prefix_cache=True)
    compute(manager, A, range(num_tokens))
    manager.release(A, range(num_tokens))

    assert compute(manager, B, range(num_tokens)) == num_tokens - 1
    assert compute(manager, C, range(num_tokens + 1)) == num_tokens


@pytest.mark.parametrize("num_common", [0, 1, 15, 16, 17, 20, 31, 35, 39])
def test_the_common_tokens_of_two_sequences_are_hit_to_the_last_one(num_common: int) -> None:
    manager = make_manager(num_blocks=20, prefix_cache=True)
    compute(manager, A, range(40))
    manager.release(A, range(40))

    assert compute(manager, B, [*range(num_common), *range(100, 140)]) == num_common


def test_the_block_with_the_longest_common_run_lends_its_tokens() -> None:
    manager = make_manager(num_blocks=20, prefix_cache=True)
    for request_id, tail in ((A, [1, 2, 3, 9]), (B, [1, 2, 3, 4, 5, 9]), (C, [1, 2, 9])):
        tokens = [*range(16), *tail]
        compute(manager, request_id, tokens)
        manager.release(request_id, tokens)

    wanted = [*range(16), 1, 2, 3, 4, 5, 6, 7]
    cached = manager.find_cached_prefix(manager.make_chain(""), wanted)

    # A took blocks 0 and 1; B shares 0 and copies 1 up to its third token into block 2.
    assert (cached.num_tokens, cached.num_tail) == (21, 5)
    assert (cached.block_ids, cached.tail_sources) == (((0,),), (2,))


def test_the_tail_is_copied_into_a_block_that_the_request_has_alone() -> None:
    manager = make_manager(num_blocks=10, prefix_cache=True)
    compute(manager, A, range(40))

    other = [*range(20), *range(100, 120)]
    chain = manager.make_chain("")
    manager.begin(B, chain, manager.find_cached_prefix(chain, other))
    copies = manager.take_moves()

    assert copies == ((1, 3),)
    assert manager.grow(B, 40) == ((0, 3, 4),)
    manager.advance(B, 40, other)
    manager.check()


def test_a_free_block_that_lends_its_tokens_is_neither_taken_nor_kept() -> None:
    """The pool is as small as can be: the source is held until the target is taken."""
    pool = BlockPool(2)
    space = make_manager(prefix_cache=True)._key_space
    manager = Manager(pool, block_size=16, key_space=space)
    compute(manager, A, range(10))
    manager.release(A, range(10))
    assert pool.free_order() == (1, 0)

    chain = manager.make_chain("")
    cached = manager.find_cached_prefix(chain, range(12))
    assert manager.num_lent(cached) == 1

    manager.begin(B, chain, cached)
    assert manager.take_moves() == ((0, 1),)
    assert pool.free_order() == (0,)
    assert manager.find_cached_prefix(chain, range(12)).num_tokens == 10


def test_a_tail_that_was_never_computed_is_not_found() -> None:
    """The request was dropped before its first step: its copy may never have been made."""
    manager = make_manager(num_blocks=10, prefix_cache=True)
    compute(manager, A, range(10))
    manager.release(A, range(10))
    chain = manager.make_chain("")
    manager.begin(B, chain, manager.find_cached_prefix(chain, range(14)))
    manager.grow(B, 14)
    manager.release(B, range(14))

    assert manager.find_cached_prefix(manager.make_chain(""), range(14)).num_tokens == 10


def test_a_tail_is_hit_as_far_as_every_group_agrees() -> None:
    pool = BlockPool(12)
    space = make_manager(prefix_cache=True)._key_space
    manager = Manager(pool, block_size=16, windows=(None, 20), key_space=space)
    compute(manager, A, range(26))
    manager.release(A, range(26))
    # Taken in the order of `free_order`: the tail of the full group is the first to go.
    assert pool.free_order()[:8] == (4, 5, 6, 7, 8, 9, 10, 11)
    assert pool.free_order()[8:] == (1, 0, 3, 2)

    cached = manager.find_cached_prefix(manager.make_chain(""), range(30))
    assert (cached.num_tokens, cached.tail_sources) == (26, (1, 3))

    assert pool.allocate(9)[-1] == 1
    cached = manager.find_cached_prefix(manager.make_chain(""), range(30))
    assert (cached.num_tokens, cached.tail_sources) == (16, ())


def test_the_group_with_the_shortest_run_decides_how_long_the_tail_is() -> None:
    pool = BlockPool(12)
    space = make_manager(prefix_cache=True)._key_space
    manager = Manager(pool, block_size=16, windows=(None, 20), key_space=space)
    for request_id, tokens in ((A, range(26)), (B, [*range(20), 99])):
        compute(manager, request_id, tokens)
        manager.release(request_id, tokens)
    tail_of_a = manager.find_cached_prefix(manager.make_chain(""), range(30)).tail_sources

    # The window group's tail of A is handed out, not the full group's: the window group has B's
    # left, which has four of the tokens.
    pool.retain(tail_of_a[0])
    pool.release([tail_of_a[0]])
    order = pool.free_order()
    pool.allocate(order.index(tail_of_a[1]) + 1)
    cached = manager.find_cached_prefix(manager.make_chain(""), range(30))

    assert cached.tail_sources[0] == tail_of_a[0]
    assert cached.tail_sources[1] != tail_of_a[1]
    assert (cached.num_tokens, cached.num_tail) == (20, 4)


def test_two_groups_copy_in_an_order_in_which_no_source_is_overwritten() -> None:
    """Both sources are held while both targets are taken, so no target is a source."""
    pool = BlockPool(4)
    space = make_manager(prefix_cache=True)._key_space
    manager = Manager(pool, block_size=16, windows=(None, 20), key_space=space)
    compute(manager, A, range(10))
    manager.release(A, range(10))
    pool.retain(BlockId(2))
    pool.retain(BlockId(3))
    pool.release([BlockId(3), BlockId(2)])
    assert pool.free_order() == (0, 1, 3, 2)

    chain = manager.make_chain("")
    manager.begin(B, chain, manager.find_cached_prefix(chain, range(12)))
    assert manager.take_moves() == ((0, 3), (1, 2))


def test_scopes_of_one_tenant_do_not_share_blocks() -> None:
    manager = make_manager(prefix_cache=True)
    chain = manager.make_chain("one", "salt")
    manager.begin(A, chain)
    manager.grow(A, 33)
    manager.advance(A, 33, range(33))

    found = {
        (tenant, scope): manager.find_cached_prefix(
            manager.make_chain(tenant, scope), range(33)
        ).num_tokens
        for tenant, scope in [("one", "salt"), ("one", ""), ("one", "x"), ("salt", "one")]
    }
    assert found == {("one", "salt"): 32, ("one", ""): 0, ("one", "x"): 0, ("salt", "one"): 0}


def test_what_free_blocks_hold_can_be_forgotten() -> None:
    manager = make_manager(num_blocks=10, prefix_cache=True)
    compute(manager, A, range(40))
    compute(manager, B, range(100, 140))
    manager.release(A, range(40))

    assert manager.forget_free() == 3

    assert manager.find_cached_prefix(manager.make_chain(""), range(40)).num_tokens == 0
    assert manager.find_cached_prefix(manager.make_chain(""), range(100, 140)).num_tokens == 32
    assert manager.forget_free() == 0
    manager.check()


def test_the_cost_aware_policy_loses_a_short_text_before_a_long_one_used_as_often() -> None:
    """Later blocks cost more, and no block goes before those behind it in its chain."""
    pool, space = BlockPool(9, eviction="cost"), make_space(16)
    manager = Manager(pool, block_size=16, key_space=space, worth=Worth(1.0, 0.5))
    compute(manager, A, range(80))
    manager.release(A, range(80))
    compute(manager, B, range(1000, 1032))
    manager.release(B, range(1000, 1032))

    # Two blocks were never used; B's are worth 1.5 each, A's 3.0: its last is worth that.
    order = pool.free_order()
    assert set(order[:2]) == {7, 8}
    assert order[2:] == (6, 5, 4, 3, 2, 1, 0)
