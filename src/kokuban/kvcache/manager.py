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

from collections.abc import Sequence

from kokuban.core.request import BlockId, RequestId
from kokuban.core.step import BlockCopy, BlockMove, BlockRewrite
from kokuban.kvcache.below import Below
from kokuban.kvcache.blocks import (
    first_needed,
    max_tokens_in,
    num_blocks_for,
    num_blocks_needed,
)
from kokuban.kvcache.cached import CachedPrefix, PrefixFinder
from kokuban.kvcache.eviction import FLAT, Worth
from kokuban.kvcache.forks import Forks
from kokuban.kvcache.keep import Keeper
from kokuban.kvcache.pool import BlockPool
from kokuban.kvcache.prefix import KeyChain, KeySpace
from kokuban.kvcache.publish import Publisher
from kokuban.kvcache.table import NOT_RESTORED, Extension, Restored, Table, check_tables
from kokuban.kvcache.tiers import LowerTiers


class Manager:
    """Block tables of the requests that run. Single writer: the engine thread.

    Args:
        pool: whose blocks it hands out; nobody else may allocate from it.
        block_size: token slots in a block.
        windows: for each KV group the tokens it looks back, its own included; None: all of them.
        key_space: switches the prefix cache on, and names what it holds.
        partial_tails: whether a hit may end inside a block, which is copied then.
        tiers: what lies below the pool; of use with a prefix cache only.
        compares: whether the tokens of every hit are compared, which keys should make needless.
        worth: what blocks cost to compute again; read by the cost-aware policy.
    """

    def __init__(
        self,
        pool: BlockPool,
        *,
        block_size: int,
        windows: Sequence[int | None] = (None,),
        key_space: KeySpace | None = None,
        partial_tails: bool = True,
        tiers: LowerTiers | None = None,
        compares: bool = False,
        worth: Worth = FLAT,
    ) -> None:
        assert windows, "a model has at least one KV group"
        assert all(window is None or window >= 1 for window in windows), f"windows {windows}"
        assert key_space is None or key_space.block_size == block_size, "two block sizes"
        self._pool = pool
        self._block_size = block_size
        self._windows = tuple(windows)
        self._windowed = [(i, window) for i, window in enumerate(windows) if window is not None]
        self._nothing_new = Extension(((),) * len(self._windows), ())
        self._key_space = key_space
        self._partial_tails = partial_tails
        self._tiers = tiers
        self._compares, self._worth = compares, worth
        self._moves: list[BlockMove] = []
        self.keeper = Keeper(pool, tiers, block_size=block_size, windows=windows)
        """For what becomes of the blocks of requests that have ended."""

        self._finder = PrefixFinder(
            pool, block_size=block_size, windows=windows, partial_tails=partial_tails, tiers=tiers
        )
        self._publisher = Publisher(pool, block_size)
        self.below: Below | None = None
        """What lies below the pool, if anything."""

        if tiers is not None:
            num_groups = len(self._windows)
            self.below = Below(pool, tiers, self._publisher, block_size, num_groups, self._allocate)
        self._forks = Forks(pool, block_size=block_size, windows=windows, allocate=self._allocate)
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
        """Blocks that can be had now."""
        return self._pool.num_free

    @property
    def num_free_unpinned(self) -> int:
        """Those of them that nobody has asked to keep."""
        return self._pool.num_free_unprotected

    @property
    def request_ids(self) -> set[RequestId]:
        """Who has block tables."""
        return set(self._tables)

    @property
    def max_tokens_alone(self) -> int | None:
        """Most tokens that one request can hold with the pool to itself; None: any number."""
        return max_tokens_in(self.num_blocks, self._windows, self._block_size)

    def num_needed(self, num_tokens: int, *, max_chunk: int) -> int:
        """Most blocks that a request holds at once: see `blocks.num_blocks_needed`."""
        return num_blocks_needed(num_tokens, self._windows, self._block_size, max_chunk=max_chunk)

    def num_held(self, request_id: RequestId) -> int:
        """Blocks that the request holds, over all groups."""
        return self._tables[request_id].num_held

    def num_shared(self, cached: CachedPrefix) -> int:
        """Blocks of a cached prefix that somebody holds: they cost no free block."""
        return cached.num_shared(self._pool)

    def num_lent(self, cached: CachedPrefix) -> int:
        """Free blocks that `begin` holds while it copies from them, beside those it keeps."""
        return cached.num_lent(self._pool)

    @property
    def index_version(self) -> int:
        """While it stays the same, `find_cached_prefix` finds the same."""
        return self._pool.index_version + (self._tiers.version if self._tiers else 0)

    def forget_free(self) -> int:
        """Forget what free blocks and lower tiers hold; returns how many blocks could be hit."""
        if self._tiers is not None:
            self._tiers.clear()
        return self._pool.forget_free()

    def take_moves(self, most_stores: int = 0) -> tuple[BlockMove, ...]:
        """The moves that the next step must make first, in their order.

        Args:
            most_stores: blocks that may be copied down beside those that must be.
        """
        if self._tiers is not None and most_stores:
            self._moves += self._tiers.drain(most_stores)
        moves = tuple(self._moves)
        self._moves.clear()
        return moves

    def commit_moves(self, moves: Sequence[BlockMove]) -> None:
        """Note that a step has made these moves."""
        if self._tiers is not None and moves:
            self._tiers.committed(moves)

    def block_table(self, request_id: RequestId, group: int = 0) -> tuple[BlockId, ...]:
        """The request's block ids in sequence order; NO_BLOCK behind the window."""
        return tuple(self._tables[request_id].groups[group])

    def make_chain(self, tenant: str, scope: str = "") -> KeyChain | None:
        """Keys for one sequence of this tenant and scope; None without a prefix cache."""
        if self._key_space is None:
            return None
        return KeyChain(self._key_space, tenant, scope=scope)

    def find_cached_prefix(
        self,
        chain: KeyChain | None,
        token_ids: Sequence[int],
        *,
        below: bool = True,
        disk: bool = False,
    ) -> CachedPrefix:
        """The longest beginning of the sequence that `begin` could start from. Changes nothing.

        Args:
            below, disk: where to look too. `begin` takes no prefix of which a part is on disk.
        """
        return self._finder.find(chain, token_ids, below=below, disk=disk)

    def begin(
        self,
        request_id: RequestId,
        chain: KeyChain | None = None,
        cached: CachedPrefix | None = None,
        token_ids: Sequence[int] = (),
    ) -> Restored:
        """Open the block tables of a request, which then holds its cached prefix, if any.

        The caller has seen to it that there are free blocks for the tail and for what comes up
        from below: see `num_lent` and `num_shared`.

        Args:
            token_ids: the sequence that the prefix was found for.
        """
        assert request_id not in self._tables, f"request {request_id} has a block table already"
        table = self._tables[request_id] = Table(self.num_groups, chain)
        if cached is None:
            return NOT_RESTORED
        if self._compares:
            self._publisher.compare(cached.block_ids, token_ids)
        sources = [block for block in cached.tail_sources if block >= 0]
        # Sources until all are taken: who gets one of them afterwards writes later.
        for block in (*table.begin_with(cached.block_ids), *sources):
            self._pool.retain(block)
        restored = NOT_RESTORED
        if cached.num_below:
            assert self.below is not None, "blocks from below without lower tiers"
            loads, restored = self.below.load(table, chain, cached, token_ids)
            self._moves += loads
        table.num_published = cached.num_tokens // self._block_size
        table.num_written = table.num_grown = cached.num_tokens
        if sources:
            targets = self._allocate(len(sources))
            for tables, target in zip(table.groups, targets, strict=True):
                tables.append(target)
            self._moves += map(BlockCopy, sources, targets)
            self._pool.release(sources)
        return restored

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

        Every block is shared; nothing is copied before one of the two writes: see `copy_on_write`.

        Args:
            parent_id: a request for which `can_fork` holds, with no step in flight; it may end at
                any time.
            chain: the child's keys for the prefix cache, or None.
        """
        assert child_id not in self._tables, f"request {child_id} has a block table already"
        assert self.can_fork(parent_id, num_tokens), f"no fork of {parent_id} at {num_tokens}"
        self._tables[child_id] = self._forks.fork(self._tables[parent_id], num_tokens, chain)

    def copy_on_write(self, request_id: RequestId) -> tuple[BlockRewrite, ...]:
        """Make the block that the request writes next its own, in every group. Before `grow`.

        A block that another request holds, or that the prefix cache may find, is replaced in the
        request's table; its last holder keeps it. Nothing happens at the border of two blocks.

        Returns:
            The entries that `grow` has returned before and that are others now. The copies are
            among the moves.

        Raises:
            OutOfBlocks: there are not enough free blocks. Nothing has changed then.
        """
        copies, rewrites = self._forks.copy_on_write(self._tables[request_id])
        self._moves += copies
        return rewrites

    def num_tokens_fitting(self, request_id: RequestId, num_tokens: int) -> int:
        """Most tokens, up to `num_tokens` in all, that the request can hold with what is free.

        The copies of `copy_on_write` come first; without them it cannot write at all.
        """
        table = self._tables[request_id]
        free = self._pool.num_free - len(self._forks.groups_to_copy(table))
        if free < 0:
            return min(num_tokens, table.num_written)
        return min(num_tokens, (table.num_logical + free // self.num_groups) * self._block_size)

    def extend(self, request_id: RequestId, num_tokens: int) -> Extension | None:
        """`copy_on_write` and `grow` to `num_tokens` tokens in all, where there is room for it.

        Returns:
            What both return; None if there are not enough free blocks. Nothing has changed then.
        """
        table = self._tables[request_id]
        if not self._forks.groups_to_copy(table) and table.reaches(num_tokens, self._block_size):
            return self._nothing_new  # So it is for most steps of a request that decodes.
        if not self.can_grow(request_id, num_tokens):
            return None
        rewrites = self.copy_on_write(request_id)
        return Extension(self.grow(request_id, num_tokens), rewrites)

    def can_grow(self, request_id: RequestId, num_tokens: int) -> bool:
        """Whether `grow` to `num_tokens` tokens in all would succeed."""
        return self.num_tokens_fitting(request_id, num_tokens) == num_tokens

    def grow(self, request_id: RequestId, num_tokens: int) -> tuple[tuple[BlockId, ...], ...]:
        """Hold blocks for `num_tokens` tokens in all, and not one more. After `copy_on_write`.

        Returns:
            For each group the entries of its table that no earlier call returned: the cached
            prefix, if this is the first one, and the blocks just taken.

        Raises:
            OutOfBlocks: there are not enough free blocks. Nothing has changed then.
        """
        table = self._tables[request_id]
        shared = self._forks.groups_to_copy(table)
        assert not shared, f"request {request_id} would write what is shared"
        count = num_blocks_for(num_tokens, self._block_size) - table.num_logical
        if count > 0:
            taken = self._allocate(count * self.num_groups)
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
        if table.chain is not None and num_computed >= (table.num_published + 1) * self._block_size:
            self._publisher.publish_full(table, table.chain, token_ids)
        kept_from = num_computed if fork_at is None else min(num_computed, fork_at)
        for group, window in self._windowed:
            needed = first_needed(kept_from, window, self._block_size)
            self._pool.release(table.leave_behind(group, needed))

    def trim(self, request_id: RequestId) -> None:
        """Give back blocks beyond the last token computed; the runner drops them from its own."""
        table = self._tables[request_id]
        self._pool.release(table.cut(num_blocks_for(table.num_written, self._block_size)))

    def release(
        self,
        request_id: RequestId,
        token_ids: Sequence[int] = (),
        *,
        down: bool = True,
        wrong_from: int | None = None,
    ) -> None:
        """Give back all blocks of a request, tail first, and forget its tables.

        Args:
            token_ids: the sequence: lets the prefix cache keep its last, partly filled block too.
            down: whether lower tiers are to keep it.
            wrong_from: what holds tokens from this one on may be wrong: nobody finds it again.
        """
        table = self._tables.pop(request_id)
        if table.chain is not None and wrong_from is not None:
            first = wrong_from // self._block_size
            contents = self._publisher.withdraw(table.chain, first, self.num_groups)
            if self._tiers is not None:
                self._tiers.forget(contents)
        elif table.chain is not None and token_ids and self._partial_tails:
            self._publisher.publish_tail(table, table.chain, token_ids)
        for blocks, behind in zip(table.groups, table.num_behind, strict=True):
            worths = self._worth.of(range(len(blocks) - 1, behind - 1, -1))
            self._pool.release(reversed(blocks[behind:]), worths)
        if down and self.below is not None and table.chain is not None and token_ids:
            self.below.send_down(table, table.chain, token_ids)

    def check(self) -> None:
        """Assert every invariant, the pool's too. Linear; for tests and an idle debug engine."""
        self._pool.check()
        if self._tiers is not None:
            self._tiers.check()
        check_tables(self._tables, self._pool)
        for table in self._tables.values():
            self._forks.check(table)

    def _allocate(self, count: int) -> list[BlockId]:
        """Blocks of the pool; what they held is copied down before they are written."""
        blocks = self._pool.allocate(count)
        if self._tiers is not None:
            self._moves += self._tiers.before_reuse(blocks)
        return blocks
