"""What a continuation of a sequence needs, by name."""

from dataclasses import replace

import pytest
from tests.unit.kvcache.test_prefix import make_space

from kokuban.kvcache.keep import Keeper
from kokuban.kvcache.pool import BlockPool
from kokuban.kvcache.prefix import KeyChain

PUBLIC = tuple(range(100, 140))


@pytest.mark.parametrize(
    ("windows", "num_contents", "num_public"),
    [((None,), 5, 2), ((None, None), 10, 4), ((None, 20), 5 + 2, 2), ((None, 60), 5 + 4, 2 + 1)],
)
def test_public_blocks_are_counted_without_those_behind_a_window(
    windows: tuple[int | None, ...], num_contents: int, num_public: int
) -> None:
    """40 public tokens are two whole blocks; of 80 a window of 20 needs the last two."""
    space = replace(make_space(block_size=16), public=(PUBLIC,))
    keeper = Keeper(BlockPool(4), None, block_size=16, windows=windows)

    kept = keeper.name(KeyChain(space, "one"), [*PUBLIC, *range(40)], 80)

    assert len(kept.contents) == num_contents
    assert kept.num_public == num_public
