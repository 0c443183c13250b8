import pytest

from kokuban.core.errors import OutOfBlocks
from kokuban.core.request import BlockId
from kokuban.kvcache.pool import BlockContent, BlockKey, BlockPool

HELLO = BlockContent(0, BlockKey(b"hello"))


def test_blocks_are_handed_out_in_the_order_in_which_they_became_free() -> None:
    pool = BlockPool(num_blocks=4)
    first = pool.allocate(3)

    pool.release([first[1]])
    pool.release([first[0]])

    assert first == [0, 1, 2]
    assert pool.free_order() == (3, 1, 0)
    assert pool.allocate(2) == [3, 1]


def test_a_failed_allocation_changes_nothing() -> None:
    pool = BlockPool(num_blocks=2)

    with pytest.raises(OutOfBlocks, match="3 blocks wanted, 2 of 2 are free"):
        pool.allocate(3)

    assert pool.num_free == 2
    assert pool.free_order() == (0, 1)


def test_a_free_block_is_found_by_its_content_until_it_is_reused() -> None:
    pool = BlockPool(num_blocks=1)
    [block] = pool.allocate(1)
    pool.publish(block, HELLO)

    pool.release([block])
    assert pool.lookup(HELLO) == block
    assert pool.num_published == 1

    pool.allocate(1)
    assert pool.lookup(HELLO) is None
    assert pool.num_published == 0


def test_a_revived_block_leaves_the_free_order() -> None:
    pool = BlockPool(num_blocks=3)
    blocks = pool.allocate(3)
    pool.publish(blocks[1], HELLO)
    pool.release(blocks)

    found = pool.lookup(HELLO)
    assert found is not None
    pool.retain(found)

    assert pool.free_order() == (0, 2)
    assert pool.num_holders(found) == 1


def test_a_block_is_free_when_the_last_of_three_holders_has_gone() -> None:
    pool = BlockPool(num_blocks=1)
    [block] = pool.allocate(1)
    pool.retain(block)
    pool.retain(block)

    counts = [pool.num_holders(block)]
    for _ in range(3):
        pool.release([block])
        counts.append(pool.num_holders(block))

    assert counts == [3, 2, 1, 0]
    assert pool.num_free == 1


def test_the_first_block_with_a_content_keeps_it() -> None:
    pool = BlockPool(num_blocks=2)
    first, second = pool.allocate(2)

    pool.publish(first, HELLO)
    pool.publish(second, HELLO)
    pool.release([second])
    pool.allocate(1)

    assert pool.lookup(HELLO) == first
    pool.check()


def test_groups_do_not_share_content() -> None:
    pool = BlockPool(num_blocks=2)
    full, window = pool.allocate(2)
    pool.publish(full, BlockContent(0, HELLO.key))

    assert pool.lookup(BlockContent(1, HELLO.key)) is None

    pool.publish(window, BlockContent(1, HELLO.key))
    assert pool.lookup(BlockContent(1, HELLO.key)) == window


def test_a_block_that_nobody_holds_cannot_be_released_or_published() -> None:
    pool = BlockPool(num_blocks=1)

    with pytest.raises(AssertionError, match="block 0 released more often than held"):
        pool.release([BlockId(0)])
    with pytest.raises(AssertionError, match="block 0 is published but nobody holds it"):
        pool.publish(BlockId(0), HELLO)


def test_every_scattered_single_block_can_be_used() -> None:
    pool = BlockPool(num_blocks=100)
    blocks = pool.allocate(100)
    pool.release(blocks[::2])

    assert pool.allocate(50) == blocks[::2]
    assert pool.num_free == 0


def test_the_check_finds_a_block_that_is_both_held_and_free() -> None:
    pool = BlockPool(num_blocks=2)
    [block] = pool.allocate(1)
    pool._free[block] = None

    with pytest.raises(AssertionError, match="free order"):
        pool.check()


def test_the_free_order_of_the_worked_example_of_vllm() -> None:
    """Source: vLLM, docs/design/prefix_caching.md: ten blocks of four tokens, three requests."""
    pool = BlockPool(num_blocks=10)
    contents = [BlockContent(0, BlockKey(bytes([index]))) for index in range(4)]

    request_0 = pool.allocate(4)  # 15 tokens, then a 16th and 17th are generated
    for block, content in zip(request_0, contents, strict=True):
        pool.publish(block, content)
    request_0 += pool.allocate(1)
    request_1 = request_0[:2]  # 14 tokens, the first two blocks are the same
    for block in request_1:
        pool.retain(block)
    request_1 = request_1 + pool.allocate(2)
    assert (request_0, request_1) == ([0, 1, 2, 3, 4], [0, 1, 5, 6])

    pool.release(reversed(request_0))
    assert pool.free_order() == (7, 8, 9, 4, 3, 2)
    pool.release(reversed(request_1))
    assert pool.free_order() == (7, 8, 9, 4, 3, 2, 6, 5, 1, 0)

    request_2 = []  # 29 tokens, 12 the same
    for content in contents[:3]:
        found = pool.lookup(content)
        assert found is not None
        pool.retain(found)
        request_2.append(found)
    assert pool.free_order() == (7, 8, 9, 4, 3, 6, 5)
    request_2 += pool.allocate(5)

    assert request_2 == [0, 1, 2, 7, 8, 9, 4, 3]
    assert pool.lookup(contents[3]) is None, "block 3 was evicted"
    pool.check()
