"""Lets the prefix cache find what the blocks of a request hold."""

from collections.abc import Sequence

from kokuban.core.request import BlockId
from kokuban.kvcache.contents import BlockContent, Child
from kokuban.kvcache.pool import BlockPool
from kokuban.kvcache.prefix import KeyChain
from kokuban.kvcache.table import Table


class Publisher:
    """Names blocks by their tokens, for every KV group of a table."""

    def __init__(self, pool: BlockPool, block_size: int) -> None:
        self._pool = pool
        self._block_size = block_size

    def child(self, chain: KeyChain, group: int, index: int, token_ids: Sequence[int]) -> Child:
        """Full block `index` of a sequence, as it is found from the block before it."""
        start = index * self._block_size
        parent = BlockContent(group, chain.parent(token_ids, index))
        return Child(parent, tuple(token_ids[start : start + self._block_size]))

    def publish_full(self, table: Table, chain: KeyChain, token_ids: Sequence[int]) -> None:
        """Make the blocks findable that are full by now and were not before."""
        full = table.num_computed // self._block_size
        for index in range(table.num_published, full):
            key, parent = chain.key(token_ids, index), chain.parent(token_ids, index)
            start = index * self._block_size
            tokens = tuple(token_ids[start : start + self._block_size])
            for group, blocks in enumerate(table.groups):
                child = Child(BlockContent(group, parent), tokens)
                self._pool.publish(blocks[index], BlockContent(group, key), child)
        table.num_published = max(table.num_published, full)

    def publish_tail(self, table: Table, chain: KeyChain, token_ids: Sequence[int]) -> None:
        """Make the block that was being filled findable, up to the last token computed."""
        index, num_tail = divmod(table.num_computed, self._block_size)
        if num_tail == 0:
            return
        parent = chain.parent(token_ids, index)
        tail = tuple(token_ids[index * self._block_size : table.num_computed])
        for group, blocks in enumerate(table.groups):
            # A fork that shares the block will fill it, or has found it filled.
            if self._pool.may_be_written(blocks[index]):
                self._pool.publish_tail(blocks[index], Child(BlockContent(group, parent), tail))

    def withdraw(self, chain: KeyChain, first: int, num_groups: int) -> list[BlockContent]:
        """Have nothing found in the pool any longer that a request computed itself.

        Args:
            first: the first logical block that it computed, in this run or an earlier one.

        Returns:
            What may be elsewhere under the same names.
        """
        contents = [
            BlockContent(group, key)
            for key in chain.known_keys(first)
            for group in range(num_groups)
        ]
        for content in contents:
            self._pool.withdraw(content)
        return contents

    def compare(self, hits: Sequence[Sequence[BlockId]], token_ids: Sequence[int]) -> None:
        """Assert that whole blocks of the pool hold the tokens that they were found for.

        Args:
            hits: for each group the blocks of a prefix; entries below 0 are not in the pool.
            token_ids: the sequence.
        """
        for blocks in hits:
            for index, block in enumerate(blocks):
                child = self._pool.child(block) if block >= 0 else None
                start = index * self._block_size
                tokens = tuple(token_ids[start : start + self._block_size])
                assert child is None or child.token_ids == tokens, (
                    f"block {block} was found for tokens {start} and up, but holds others"
                )
