"""The block tables of one request, one for each KV group, as its manager keeps them."""

from typing import NamedTuple

from kokuban.core.request import BlockId
from kokuban.kvcache.prefix import KeyChain


class Restored(NamedTuple):
    """Tokens of a cached prefix that came up from below the pool."""

    ram_tokens: int = 0
    disk_tokens: int = 0


NOT_RESTORED = Restored()


class Table:
    """What one request holds. Written by `Manager` alone."""

    def __init__(self, num_groups: int, chain: KeyChain | None) -> None:
        self.groups: list[list[BlockId]] = [[] for _ in range(num_groups)]
        self.num_behind = [0] * num_groups
        """For each group, the leading entries that are NO_BLOCK."""

        self.num_shown = 0
        """Logical blocks that `grow` has returned."""

        self.num_published = 0
        """Logical blocks that have been published."""

        self.num_computed = 0
        """Tokens that `advance` was told of."""

        self.chain = chain

    @property
    def num_logical(self) -> int:
        return len(self.groups[0])

    @property
    def num_held(self) -> int:
        return self.num_logical * len(self.groups) - sum(self.num_behind)
