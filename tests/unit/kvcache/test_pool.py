import random

import pytest

from kokuban.core.errors import OutOfBlocks
from kokuban.core.request import BlockId
from kokuban.kvcache.pool import BlockContent, BlockKey, BlockPool, Child

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
    pool._free.add(block, 0.0)

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


def child(parent: bytes, *token_ids: int) -> Child:
    return Child(BlockContent(0, BlockKey(parent)), token_ids)


def test_the_longest_common_run_is_found_among_any_number_of_children() -> None:
    rng = random.Random(7)
    pool = BlockPool(300)
    children = {}
    for block in pool.allocate(300):
        children[block] = tuple(rng.randrange(3) for _ in range(rng.randint(1, 8)))
        pool.publish_tail(block, child(b"p", *children[block]))
    pool.check()

    for _ in range(200):
        wanted = tuple(rng.randrange(4) for _ in range(rng.randint(0, 8)))
        expected = max(
            length
            for length in range(len(wanted) + 1)
            if any(each[:length] == wanted[:length] for each in children.values())
        )
        run = pool.longest_run(child(b"p").parent, wanted)
        assert (run.length if run else 0) == expected
        assert run is None or children[run.block][: run.length] == wanted[: run.length]


def test_children_are_found_under_their_parent_and_group_only() -> None:
    pool = BlockPool(2)
    pool.publish_tail(pool.allocate(1)[0], child(b"p", 1, 2))

    assert pool.longest_run(BlockContent(0, BlockKey(b"p")), (1, 2, 3)) == (0, 2)
    assert pool.longest_run(BlockContent(0, BlockKey(b"q")), (1, 2, 3)) is None
    assert pool.longest_run(BlockContent(1, BlockKey(b"p")), (1, 2, 3)) is None
    assert pool.longest_run(BlockContent(0, BlockKey(b"p")), (2, 1)) is None


def test_tokens_that_another_block_has_already_are_not_listed_twice() -> None:
    pool = BlockPool(3)
    first, second, third = pool.allocate(3)
    pool.publish_tail(first, child(b"p", 1, 2, 3))
    version = pool.index_version

    pool.publish_tail(second, child(b"p", 1, 2))
    assert pool.index_version == version
    pool.publish_tail(third, child(b"p", 1, 2, 3, 4))

    assert pool.longest_run(child(b"p").parent, (1, 2, 3, 4)) == (third, 4)
    pool.check()


def test_a_block_that_is_handed_out_lends_nothing_any_more() -> None:
    pool = BlockPool(1)
    pool.allocate(1)
    pool.publish_tail(BlockId(0), child(b"p", 1, 2))
    pool.release([BlockId(0)])
    version = pool.index_version

    pool.allocate(1)

    assert pool.longest_run(child(b"p").parent, (1, 2)) is None
    assert pool.index_version != version
    pool.check()


def test_to_forget_what_is_free_spares_what_is_held() -> None:
    pool = BlockPool(3)
    held, free, empty = pool.allocate(3)
    pool.publish(held, BlockContent(0, BlockKey(b"held")), child(b"p", 1))
    pool.publish(free, BlockContent(0, BlockKey(b"free")), child(b"p", 2))
    pool.release([free, empty])

    assert pool.forget_free() == 1

    assert pool.lookup(BlockContent(0, BlockKey(b"held"))) == held
    assert pool.lookup(BlockContent(0, BlockKey(b"free"))) is None
    assert pool.free_order() == (free, empty)
    pool.check()
