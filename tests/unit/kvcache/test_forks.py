"""Forks of block tables: what is shared, who copies, and what a copy costs."""

from collections.abc import Sequence

import pytest
from tests.unit.kvcache.test_manager import A, B, C, compute, make_manager

from kokuban.core.errors import OutOfBlocks
from kokuban.core.request import NO_BLOCK, BlockId, RequestId
from kokuban.core.step import BlockCopy, BlockRewrite
from kokuban.kvcache.manager import Manager

_ = NO_BLOCK
TOKENS = list(range(1000))


def computed(num_tokens: int, num_blocks: int = 10, **options: object) -> Manager:
    """A manager with request A, which has computed so many tokens."""
    manager = make_manager(num_blocks, **options)  # type: ignore[arg-type]
    compute(manager, A, TOKENS[:num_tokens])
    return manager


def write(
    manager: Manager, request_id: RequestId, num_tokens: int, tokens: Sequence[int] = TOKENS
) -> tuple[tuple[BlockCopy, ...], tuple[BlockRewrite, ...], tuple[tuple[BlockId, ...], ...]]:
    """One step up to `num_tokens` tokens; returns copies, rewrites and new block ids."""
    rewrites = manager.copy_on_write(request_id)
    copies = tuple(move for move in manager.take_moves() if isinstance(move, BlockCopy))
    new = manager.grow(request_id, num_tokens)
    manager.check()
    manager.advance(request_id, num_tokens, tokens)
    manager.check()
    return copies, rewrites, new


def test_a_fork_shares_every_block_and_takes_none() -> None:
    manager = computed(40)

    manager.fork(A, B, 40)

    assert manager.block_table(B) == manager.block_table(A) == (0, 1, 2)
    assert manager.num_free == 7
    manager.check()


def test_eight_forks_of_1000_tokens_save_seven_times_62_blocks() -> None:
    """Harness 4.3 (e): (k - 1) * floor(prompt / block)."""
    manager = computed(1000, 600)
    for index in range(1, 8):
        child = RequestId(f"child {index}")
        manager.fork(A, child, 999)
        write(manager, child, 1000)

    assert manager.num_blocks - manager.num_free == 8 * 63 - 7 * 62


def test_the_first_writer_copies_and_the_last_holder_does_not() -> None:
    manager = computed(40)
    manager.fork(A, B, 40)
    manager.fork(A, C, 40)

    child = write(manager, B, 41)
    parent = write(manager, A, 41)
    last = write(manager, C, 41)

    assert child == (((2, 3),), (), ((0, 1, 3),))
    # The parent's row has had block 2 for long: it is told what stands there now.
    assert parent == (((2, 4),), ((0, 2, 4),), ((),))
    assert last == ((), (), ((0, 1, 2),))
    assert [manager.block_table(each)[2] for each in (A, B, C)] == [4, 3, 2]


def test_at_the_border_of_two_blocks_nothing_is_copied() -> None:
    manager = computed(32)
    manager.fork(A, B, 32)

    assert write(manager, B, 40) == ((), (), ((0, 1, 2),))
    assert write(manager, A, 40) == ((), (), ((3,),))


def test_a_parent_that_ended_leaves_its_blocks_to_the_child() -> None:
    manager = computed(40)
    manager.fork(A, B, 40)
    manager.release(A, TOKENS[:40])

    assert write(manager, B, 41) == ((), (), ((0, 1, 2),))
    manager.release(B)
    assert manager.num_free == 10


def test_every_group_copies_and_a_window_shares_its_window_only() -> None:
    manager = computed(70, 20, windows=(None, 20))
    assert manager.block_table(A, 1) == (_, _, _, 8, 9)

    manager.fork(A, B, 70)
    copies, rewrites, new = write(manager, B, 71)

    assert copies == ((4, 10), (9, 11))
    assert rewrites == ()
    assert new == ((0, 1, 2, 3, 10), (_, _, _, 8, 11))
    assert manager.num_fork_shares(70) == 5


def test_a_fork_inside_a_full_block_that_is_cached_leaves_it_as_it_is() -> None:
    manager = computed(48, prefix_cache=True)
    manager.fork(A, B, 40, manager.make_chain(""))
    manager.release(A, TOKENS[:48])

    # Nobody else holds block 2, but the cache may find it.
    copies, _rewrites, new = write(manager, B, 41, [*TOKENS[:40], 7])

    assert copies == ((2, 3),)
    assert new == ((0, 1, 3),)
    found = manager.find_cached_prefix(manager.make_chain(""), TOKENS[:49])
    assert found.block_ids == ((0, 1, 2),)


def test_a_child_that_ends_unwritten_does_not_publish_what_the_parent_fills() -> None:
    manager = computed(40, prefix_cache=True)
    manager.fork(A, B, 35, manager.make_chain(""))
    manager.release(B, TOKENS[:35])
    manager.check()

    write(manager, A, 48)

    found = manager.find_cached_prefix(manager.make_chain(""), TOKENS[:49])
    assert found.block_ids == ((0, 1, 2),)


def test_a_child_publishes_what_it_fills() -> None:
    manager = computed(40, prefix_cache=True)
    manager.fork(A, B, 40, manager.make_chain(""))
    own = [*TOKENS[:40], *range(5000, 5030)]
    write(manager, B, 70, own)
    manager.release(B, own)

    found = manager.find_cached_prefix(manager.make_chain(""), [*own, 1])

    assert found.num_tokens == 70


def test_what_fits_knows_that_a_copy_needs_a_block() -> None:
    manager = computed(40, 4)
    manager.fork(A, B, 40)

    assert manager.num_tokens_fitting(B, 100) == 48
    write(manager, B, 41)
    assert manager.num_tokens_fitting(A, 100) == 48  # The last holder copies nothing.
    manager.fork(A, C, 40)

    assert manager.num_tokens_fitting(C, 100) == 40
    assert not manager.can_grow(C, 41)
    assert not manager.can_grow(A, 41)


def test_a_copy_that_fails_changes_nothing() -> None:
    manager = computed(40, 6, windows=(None, None))
    manager.fork(A, B, 40)

    with pytest.raises(OutOfBlocks, match="2 blocks wanted, 0 of 6 are free"):
        manager.copy_on_write(B)

    manager.check()
    assert manager.block_table(B, 1) == manager.block_table(A, 1)


@pytest.mark.parametrize("num_tokens", [51, 52, 53, 64])
def test_a_window_that_moved_on_cannot_be_forked_unless_it_was_kept(num_tokens: int) -> None:
    """Position 51 looks back to 32, where block 2 begins, and position 50 to 31, in block 1."""
    for fork_at in (None, num_tokens - 1):
        manager = make_manager(20, windows=(None, 20))
        manager.begin(A)
        manager.grow(A, num_tokens)
        manager.advance(A, num_tokens, fork_at=fork_at)
        gone = num_tokens == 51 and fork_at is None

        assert manager.can_fork(A, num_tokens)
        assert manager.can_fork(A, num_tokens - 1) == (not gone)
        assert not manager.can_fork(A, num_tokens + 1)
        assert not manager.can_fork(B, 1)


def test_to_write_what_is_shared_is_a_bug() -> None:
    manager = computed(40)
    manager.fork(A, B, 40)

    with pytest.raises(AssertionError, match="request b would write what is shared"):
        manager.grow(B, 41)


def test_check_sees_one_block_in_two_places() -> None:
    manager = computed(40)
    manager.fork(A, B, 40)
    manager._tables[B].groups[0][:2] = reversed(manager._tables[B].groups[0][:2])

    with pytest.raises(AssertionError, match="is in two places of sequences"):
        manager.check()


def test_check_sees_a_shared_block_that_is_being_written() -> None:
    manager = computed(40)
    manager.grow(A, 41)
    manager.fork(A, B, 40)

    with pytest.raises(AssertionError, match="block 2 is written, but not alone"):
        manager.check()


def test_extend_is_copy_on_write_and_grow_in_one() -> None:
    manager, apart = computed(40), computed(40)
    for each in (manager, apart):
        each.fork(A, B, 40)

    extension = manager.extend(A, 49)

    rewrites = apart.copy_on_write(A)
    assert extension == (apart.grow(A, 49), rewrites)
    assert rewrites, "the last block was shared"
    assert manager.take_moves() == apart.take_moves()
    manager.check()


def test_extend_inside_the_last_block_takes_nothing() -> None:
    manager = computed(40)
    manager.extend(A, 41)
    num_free = manager.num_free
    manager.advance(A, 41)

    assert manager.extend(A, 42) == (((),), ())
    assert manager.num_free == num_free
    manager.check()


def test_extend_without_room_changes_nothing() -> None:
    manager = computed(40)
    manager.fork(A, B, 40)
    table = manager.block_table(B)
    room = manager.num_tokens_fitting(B, 10_000)

    assert manager.extend(B, room + 1) is None

    assert manager.block_table(B) == table
    assert manager.take_moves() == ()
    assert manager.num_tokens_fitting(B, 10_000) == room
    assert manager.extend(B, room) is not None
