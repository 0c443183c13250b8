"""Decides which blocks each request holds: a block table for each KV group, grown block by block.

Owns: the block tables. Asks: `BlockPool`. Never: a tensor, or a request's progress beyond the
numbers that it is told.

Layers with the same need of KV form a group (program.KvGroup) with a table of its own; one pool
of equal blocks serves them all. Tables grow together, so that logical block i is in every table or
in none. A group with a window gives back the blocks that lie wholly behind it, leaving NO_BLOCK:

    tokens    0 ─────────────────────────── computed ──── computed + chunk
    full      [ held                                    | taken by `grow` ]
    window    [ NO_BLOCK ····· | held: window - 1 tokens | taken by `grow` ]
"""

from collections import Counter
from collections.abc import Sequence

from kokuban.core.request import NO_BLOCK, BlockId, RequestId
from kokuban.core.step import BlockCopy, BlockRewrite
from kokuban.kvcache.blocks import first_needed, max_blocks_touched, num_blocks_for
from kokuban.kvcache.cached import CachedPrefix, PrefixFinder
from kokuban.kvcache.forks import Forks
from kokuban.kvcache.pool import BlockContent, BlockPool, Child
from kokuban.kvcache.prefix import KeyChain, KeySpace
from kokuban.kvcache.table import Table


class Manager:
    """Block tables of the requests that run. Single writer: the engine thread.

    Args:
        pool: whose blocks it hands out; nobody else may allocate from it.
        block_size: token slots in a block.
        windows: for each KV group the tokens it looks back, its own included; None: all of them.
        key_space: switches the prefix cache on, and names what it holds.
        partial_tails: whether a hit may end inside a block, which is copied then.
    """

    def __init__(
        self,
        pool: BlockPool,
        *,
        block_size: int,
        windows: Sequence[int | None] = (None,),
        key_space: KeySpace | None = None,
        partial_tails: bool = True,
    ) -> None:
        assert windows, "a model has at least one KV group"
        assert all(window is None or window >= 1 for window in windows), f"windows {windows}"
        assert key_space is None or key_space.block_size == block_size, "two block sizes"
        self._pool = pool
        self._block_size = block_size
        self._windows = tuple(windows)
        self._key_space = key_space
        self._partial_tails = partial_tails
        self._finder = PrefixFinder(
            pool, block_size=block_size, windows=windows, partial_tails=partial_tails
        )
        self._forks = Forks(pool, block_size=block_size, windows=windows)
        self._tables: dict[RequestId, Table] = {}

    @property
    def num_groups(self) -> int:
        return len(self._windows)

    @property
    def num_blocks(self) -> int:
        """All blocks of the pool."""
        return self._pool.num_blocks

    @property
    def num_free(self) -> int:
        """Blocks of the pool that can be had now."""
        return self._pool.num_free

    @property
    def request_ids(self) -> set[RequestId]:
        """The requests that have block tables."""
        return set(self._tables)

    @property
    def max_tokens_alone(self) -> int | None:
        """Most tokens that one request can hold with the pool to itself; None: any number.

        It is then computed in chunks of one token if need be, which asks least of the windows.
        """
        if self.num_needed(2**62, max_chunk=1) <= self.num_blocks:
            return None
        low, high = 0, self.num_blocks
        while low < high:
            middle = (low + high + 1) // 2
            if self.num_needed(middle * self._block_size, max_chunk=1) <= self.num_blocks:
                low = middle
            else:
                high = middle - 1
        return low * self._block_size

    def num_needed(self, num_tokens: int, *, max_chunk: int) -> int:
        """Most blocks that a request holds at once on its way to `num_tokens` tokens.

        Args:
            num_tokens: tokens that it holds in the end.
            max_chunk: most tokens that one step computes of it. A window group holds the chunk
                and the window - 1 tokens before it.
        """
        whole = num_blocks_for(num_tokens, self._block_size)
        return sum(
            whole
            if window is None
            else min(whole, max_blocks_touched(window - 1 + max_chunk, self._block_size))
            for window in self._windows
        )

    def num_held(self, request_id: RequestId) -> int:
        """Blocks that the request holds, over all groups, shared ones included."""
        return self._tables[request_id].num_held

    def num_shared(self, cached: CachedPrefix) -> int:
        """Blocks of a cached prefix that somebody holds already: they cost no free block."""
        return sum(
            self._pool.num_holders(block) > 0
            for group in cached.block_ids
            for block in group
            if block != NO_BLOCK
        )

    def num_lent(self, cached: CachedPrefix) -> int:
        """Free blocks that `begin` holds while it copies from them, beside those it keeps."""
        return sum(self._pool.num_holders(block) == 0 for block in cached.tail_sources)

    @property
    def index_version(self) -> int:
        """While it stays the same, `find_cached_prefix` finds the same."""
        return self._pool.index_version

    def forget_free(self) -> int:
        """Forget what free blocks hold; returns how many could have been hit."""
        return self._pool.forget_free()

    def block_table(self, request_id: RequestId, group: int = 0) -> tuple[BlockId, ...]:
        """The request's block ids in sequence order; NO_BLOCK behind the group's window."""
        return tuple(self._tables[request_id].groups[group])

    def make_chain(self, tenant: str, scope: str = "") -> KeyChain | None:
        """Keys for one sequence of this tenant and scope; None without a prefix cache."""
        if self._key_space is None:
            return None
        return KeyChain(self._key_space, tenant, scope=scope)

    def find_cached_prefix(self, chain: KeyChain | None, token_ids: Sequence[int]) -> CachedPrefix:
        """The longest beginning of the sequence that `begin` could start from. Changes nothing."""
        return self._finder.find(chain, token_ids)

    def begin(
        self,
        request_id: RequestId,
        chain: KeyChain | None = None,
        cached: CachedPrefix | None = None,
    ) -> tuple[BlockCopy, ...]:
        """Open the block tables of a request, which then holds its cached prefix, if any.

        The caller has seen to it that there are free blocks for the tail: see `num_lent`.

        Returns:
            Copies to be made, in this order, before anything else that the next step writes.
        """
        assert request_id not in self._tables, f"request {request_id} has a block table already"
        table = self._tables[request_id] = Table(self.num_groups, chain)
        if cached is None:
            return ()
        for group, blocks in enumerate(cached.block_ids):
            table.groups[group].extend(blocks)
            table.num_behind[group] = blocks.count(NO_BLOCK)
            for block in blocks[table.num_behind[group] :]:
                self._pool.retain(block)
        table.num_published = table.num_logical
        table.num_written = table.num_grown = cached.num_tokens
        return self._copy_tail(table, cached.tail_sources)

    def can_fork(self, parent_id: RequestId, num_tokens: int) -> bool:
        """Whether the request has computed so many tokens, and holds what they are needed for."""
        table = self._tables.get(parent_id)
        return table is not None and self._forks.is_possible(table, num_tokens)

    def num_fork_shares(self, num_tokens: int) -> int:
        """Blocks that a fork at `num_tokens` tokens never writes into: they stay shared."""
        return self._forks.num_shared(num_tokens)

    def fork(
        self,
        parent_id: RequestId,
        child_id: RequestId,
        num_tokens: int,
        chain: KeyChain | None = None,
    ) -> None:
        """Open block tables that begin as the parent's, up to `num_tokens` tokens.

        Every block is shared, a last one that is partly filled too; nothing is copied, and no free
        block is needed, before one of the two writes on: see `copy_on_write`.

        Args:
            parent_id: a request for which `can_fork` holds, with no step in flight; it may end at
                any time.
            chain: the child's keys for the prefix cache, or None.
        """
        assert child_id not in self._tables, f"request {child_id} has a block table already"
        assert self.can_fork(parent_id, num_tokens), f"no fork of {parent_id} at {num_tokens}"
        self._tables[child_id] = self._forks.fork(self._tables[parent_id], num_tokens, chain)

    def copy_on_write(
        self, request_id: RequestId
    ) -> tuple[tuple[BlockCopy, ...], tuple[BlockRewrite, ...]]:
        """Make the block that the request writes next its own, in every group. Before `grow`.

        A block that another request holds, or that the prefix cache may find, is replaced in the
        request's table; its last holder keeps it. Nothing happens at the border of two blocks.

        Returns:
            Copies to be made before anything else that the next step writes, and the entries that
            `grow` has returned before and that are others now.

        Raises:
            OutOfBlocks: there are not enough free blocks. Nothing has changed then.
        """
        return self._forks.copy_on_write(self._tables[request_id])

    def num_tokens_fitting(self, request_id: RequestId, num_tokens: int) -> int:
        """Most tokens, up to `num_tokens` in all, that the request can hold with what is free.

        The copies of `copy_on_write` come first; without them it cannot write at all.
        """
        table = self._tables[request_id]
        free = self._pool.num_free - len(self._forks.groups_to_copy(table))
        if free < 0:
            return min(num_tokens, table.num_written)
        return min(num_tokens, (table.num_logical + free // self.num_groups) * self._block_size)

    def can_grow(self, request_id: RequestId, num_tokens: int) -> bool:
        """Whether `grow` to `num_tokens` tokens in all would succeed."""
        return self.num_tokens_fitting(request_id, num_tokens) == num_tokens

    def grow(self, request_id: RequestId, num_tokens: int) -> tuple[tuple[BlockId, ...], ...]:
        """Hold blocks for `num_tokens` tokens in all, and not one block more.

        After `copy_on_write`, if a block that is written is not the request's own.

        Returns:
            For each group the entries of its table that no earlier call returned: the cached
            prefix, if this is the first one, and the blocks just taken.

        Raises:
            OutOfBlocks: there are not enough free blocks. Nothing has changed then.
        """
        table = self._tables[request_id]
        assert not self._forks.groups_to_copy(table), (
            f"request {request_id} would write what is shared"
        )
        count = num_blocks_for(num_tokens, self._block_size) - table.num_logical
        if count > 0:
            taken = self._pool.allocate(count * self.num_groups)
            for group, blocks in enumerate(table.groups):
                blocks.extend(taken[group * count : (group + 1) * count])
        table.num_grown = max(table.num_grown, num_tokens)
        shown, table.num_shown = table.num_shown, table.num_logical
        return tuple(tuple(blocks[shown:]) for blocks in table.groups)

    def advance(
        self,
        request_id: RequestId,
        num_computed: int,
        token_ids: Sequence[int] = (),
        *,
        fork_at: int | None = None,
    ) -> None:
        """Note that the K and V of the first `num_computed` tokens are in the cache, and right.

        Publishes the blocks that became full, and gives back those behind a window.

        Args:
            token_ids: the sequence, `num_computed` tokens or more; read by the prefix cache only.
            fork_at: keep, until the next call, what a fork at so many tokens needs.
        """
        table = self._tables[request_id]
        table.num_computed = table.num_written = num_computed
        if table.chain is not None:
            self._publish(table, table.chain, num_computed, token_ids)
        for group, window in enumerate(self._windows):
            if window is None:
                continue
            behind = table.num_behind[group]
            kept_from = num_computed if fork_at is None else min(num_computed, fork_at)
            needed = max(behind, first_needed(kept_from, window, self._block_size))
            blocks = table.groups[group]
            self._pool.release(reversed(blocks[behind:needed]))
            blocks[behind:needed] = [NO_BLOCK] * (needed - behind)
            table.num_behind[group] = needed

    def release(self, request_id: RequestId, token_ids: Sequence[int] = ()) -> None:
        """Give back all blocks of a request, tail first, and forget its tables.

        Args:
            token_ids: the sequence: lets the prefix cache keep its last, partly filled block too.
        """
        table = self._tables.pop(request_id)
        if table.chain is not None and token_ids and self._partial_tails:
            self._publish_tail(table, table.chain, token_ids)
        for blocks, behind in zip(table.groups, table.num_behind, strict=True):
            self._pool.release(reversed(blocks[behind:]))

    def check(self) -> None:
        """Assert every invariant, the pool's too. Linear; for tests and an idle debug engine."""
        self._pool.check()
        holders: Counter[BlockId] = Counter()
        places: dict[BlockId, tuple[int, int]] = {}
        for request_id, table in self._tables.items():
            lengths = {len(blocks) for blocks in table.groups}
            assert len(lengths) == 1, f"tables of request {request_id} differ in length"
            assert table.num_published <= table.num_logical, f"request {request_id} publishes ahead"
            assert table.num_shown <= table.num_logical, f"request {request_id} shows too much"
            for group, blocks in enumerate(table.groups):
                behind = table.num_behind[group]
                held = blocks[behind:]
                assert blocks[:behind] == [NO_BLOCK] * behind, f"request {request_id}: behind"
                assert NO_BLOCK not in held, f"request {request_id} has a hole in its table"
                holders.update(held)
                for index, block in enumerate(held, start=behind):
                    place = places.setdefault(block, (group, index))
                    assert place == (group, index), f"block {block} is in two places of sequences"
            self._forks.check(table)
        for block in map(BlockId, range(self.num_blocks)):
            counted, known = holders[block], self._pool.num_holders(block)
            assert counted == known, f"block {block} is in {counted} tables but held {known} times"

    def _publish(
        self, table: Table, chain: KeyChain, num_computed: int, token_ids: Sequence[int]
    ) -> None:
        full = num_computed // self._block_size
        for index in range(table.num_published, full):
            key, parent = chain.key(token_ids, index), chain.parent(token_ids, index)
            block_tokens = tuple(
                token_ids[index * self._block_size : (index + 1) * self._block_size]
            )
            for group, blocks in enumerate(table.groups):
                child = Child(BlockContent(group, parent), block_tokens)
                self._pool.publish(blocks[index], BlockContent(group, key), child)
        table.num_published = max(table.num_published, full)

    def _publish_tail(self, table: Table, chain: KeyChain, token_ids: Sequence[int]) -> None:
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

    def _copy_tail(self, table: Table, sources: Sequence[BlockId]) -> tuple[BlockCopy, ...]:
        """Append a block for each source, which is to be copied into it.

        Copies run before the step's writes, and in order. So a source is needed only until all
        targets are taken: whoever gets it afterwards, in the same step perhaps, writes later.
        """
        if not sources:
            return ()
        for source in sources:
            self._pool.retain(source)
        targets = self._pool.allocate(len(sources))
        self._pool.release(sources)
        for blocks, target in zip(table.groups, targets, strict=True):
            blocks.append(target)
        return tuple(map(BlockCopy, sources, targets))
