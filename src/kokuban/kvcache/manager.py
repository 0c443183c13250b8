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
from kokuban.core.step import BlockCopy, BlockLoad, BlockMove
from kokuban.kvcache.blocks import first_needed, max_blocks_touched, num_blocks_for
from kokuban.kvcache.cached import CachedPrefix, PrefixFinder
from kokuban.kvcache.contents import BlockContent, Child
from kokuban.kvcache.pool import BlockPool
from kokuban.kvcache.prefix import KeyChain, KeySpace
from kokuban.kvcache.table import NOT_RESTORED, Restored, Table
from kokuban.kvcache.tiers import IN_RAM, ON_DISK, Fetch, LowerTiers


class Manager:
    """Block tables of the requests that run. Single writer: the engine thread.

    Args:
        pool: whose blocks it hands out; nobody else may allocate from it.
        block_size: token slots in a block.
        windows: for each KV group the tokens it looks back, its own included; None: all of them.
        key_space: switches the prefix cache on, and names what it holds.
        partial_tails: whether a hit may end inside a block, which is copied then.
        tiers: what lies below the pool; of use with a prefix cache only.
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
    ) -> None:
        assert windows, "a model has at least one KV group"
        assert all(window is None or window >= 1 for window in windows), f"windows {windows}"
        assert key_space is None or key_space.block_size == block_size, "two block sizes"
        self._pool = pool
        self._block_size = block_size
        self._windows = tuple(windows)
        self._key_space = key_space
        self._partial_tails = partial_tails
        self._tiers = tiers
        self._moves: list[BlockMove] = []
        self._finder = PrefixFinder(
            pool, block_size=block_size, windows=windows, partial_tails=partial_tails, tiers=tiers
        )
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
            if block >= 0
        )

    def num_lent(self, cached: CachedPrefix) -> int:
        """Free blocks that `begin` holds while it copies from them, beside those it keeps."""
        return sum(
            block >= 0 and self._pool.num_holders(block) == 0 for block in cached.tail_sources
        )

    @property
    def index_version(self) -> int:
        """While it stays the same, `find_cached_prefix` finds the same."""
        return self._pool.index_version + (self._tiers.version if self._tiers else 0)

    def forget_free(self) -> int:
        """Forget what free blocks and the lower tiers hold.

        Returns:
            How many blocks of the pool could have been hit.
        """
        if self._tiers is not None:
            self._tiers.clear()
        return self._pool.forget_free()

    @property
    def has_tiers(self) -> bool:
        """Whether there is anything below the pool."""
        return self._tiers is not None

    @property
    def has_stores(self) -> bool:
        """Whether blocks are still to be copied down."""
        return self._tiers is not None and self._tiers.num_to_store > 0

    def poll(self) -> None:
        """Take in what the disk has brought and written."""
        if self._tiers is not None:
            self._tiers.poll()

    def fetch(
        self, chain: KeyChain | None, cached: CachedPrefix, token_ids: Sequence[int]
    ) -> Fetch | None:
        """Begin to bring up what a cached prefix has on disk; None if too many wait for that."""
        assert self._tiers is not None, "a prefix from disk without lower tiers"
        assert chain is not None, "a cached prefix without keys"
        if not self._tiers.can_fetch():
            return None
        wanted = self._wanted(chain, cached, token_ids, (IN_RAM, ON_DISK))
        return self._tiers.fetch([content for _, _, content in wanted])

    def end_fetch(self, fetch: Fetch) -> None:
        """Let go of what was fetched: its request begins, or has gone."""
        assert self._tiers is not None, "a fetch without lower tiers"
        self._tiers.end_fetch(fetch)

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
        """The request's block ids in sequence order; NO_BLOCK behind the group's window."""
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
            below, disk: whether to look below the pool, and on disk. `begin` takes no prefix of
                which a part is on disk.
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
        for group, blocks in enumerate(cached.block_ids):
            table.groups[group].extend(blocks)
            table.num_behind[group] = blocks.count(NO_BLOCK)
            for block in blocks:
                if block >= 0:
                    self._pool.retain(block)
        sources = [block for block in cached.tail_sources if block >= 0]
        for source in sources:
            # Until all blocks are taken: whoever gets it afterwards is filled or writes later.
            self._pool.retain(source)
        restored = self._load_blocks(table, cached, token_ids) if cached.num_below else NOT_RESTORED
        table.num_published = cached.num_tokens // self._block_size
        if sources:
            targets = self._allocate(len(sources))
            for tables, target in zip(table.groups, targets, strict=True):
                tables.append(target)
            self._moves += map(BlockCopy, sources, targets)
            self._pool.release(sources)
        return restored

    def num_tokens_fitting(self, request_id: RequestId, num_tokens: int) -> int:
        """Most tokens, up to `num_tokens` in all, that the request can hold with what is free."""
        new = self._pool.num_free // self.num_groups
        return min(num_tokens, (self._tables[request_id].num_logical + new) * self._block_size)

    def can_grow(self, request_id: RequestId, num_tokens: int) -> bool:
        """Whether `grow` to `num_tokens` tokens in all would succeed."""
        return self.num_tokens_fitting(request_id, num_tokens) == num_tokens

    def grow(self, request_id: RequestId, num_tokens: int) -> tuple[tuple[BlockId, ...], ...]:
        """Hold blocks for `num_tokens` tokens in all, and not one block more.

        Returns:
            For each group the entries of its table that no earlier call returned: the cached
            prefix, if this is the first one, and the blocks just taken.

        Raises:
            OutOfBlocks: there are not enough free blocks. Nothing has changed then.
        """
        table = self._tables[request_id]
        count = num_blocks_for(num_tokens, self._block_size) - table.num_logical
        if count > 0:
            taken = self._allocate(count * self.num_groups)
            for group, blocks in enumerate(table.groups):
                blocks.extend(taken[group * count : (group + 1) * count])
        shown, table.num_shown = table.num_shown, table.num_logical
        return tuple(tuple(blocks[shown:]) for blocks in table.groups)

    def advance(
        self, request_id: RequestId, num_computed: int, token_ids: Sequence[int] = ()
    ) -> None:
        """Note that the K and V of the first `num_computed` tokens are in the cache, and right.

        Publishes the blocks that became full, and gives back those behind a window.

        Args:
            token_ids: the sequence, `num_computed` tokens or more; read by the prefix cache only.
        """
        table = self._tables[request_id]
        table.num_computed = num_computed
        if table.chain is not None:
            self._publish(table, table.chain, num_computed, token_ids)
        for group, window in enumerate(self._windows):
            if window is None:
                continue
            behind = table.num_behind[group]
            needed = max(behind, first_needed(num_computed, window, self._block_size))
            blocks = table.groups[group]
            self._pool.release(reversed(blocks[behind:needed]))
            blocks[behind:needed] = [NO_BLOCK] * (needed - behind)
            table.num_behind[group] = needed

    def release(
        self, request_id: RequestId, token_ids: Sequence[int] = (), *, down: bool = True
    ) -> None:
        """Give back all blocks of a request, tail first, and forget its tables.

        Args:
            down: whether lower tiers are to keep them.
            token_ids: the sequence: lets the prefix cache keep its last, partly filled block too.
        """
        table = self._tables.pop(request_id)
        if table.chain is not None and token_ids and self._partial_tails:
            self._publish_tail(table, table.chain, token_ids)
        worths = range(table.num_logical, 0, -1)
        for blocks, behind in zip(table.groups, table.num_behind, strict=True):
            self._pool.release(reversed(blocks[behind:]), worths)
        if down and self._tiers is not None and table.chain is not None and token_ids:
            self._send_down(table, table.chain, self._tiers, token_ids)

    def check(self) -> None:
        """Assert every invariant, the pool's too. Linear; for tests and an idle debug engine."""
        self._pool.check()
        if self._tiers is not None:
            self._tiers.check()
        holders: Counter[BlockId] = Counter()
        for request_id, table in self._tables.items():
            lengths = {len(blocks) for blocks in table.groups}
            assert len(lengths) == 1, f"tables of request {request_id} differ in length"
            assert table.num_published <= table.num_logical, f"request {request_id} publishes ahead"
            for blocks, behind in zip(table.groups, table.num_behind, strict=True):
                held = blocks[behind:]
                assert blocks[:behind] == [NO_BLOCK] * behind, f"request {request_id}: behind"
                assert NO_BLOCK not in held, f"request {request_id} has a hole in its table"
                holders.update(held)
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
            self._pool.publish_tail(blocks[index], Child(BlockContent(group, parent), tail))

    def _allocate(self, count: int) -> list[BlockId]:
        """Blocks of the pool; what they held is copied down before they are written."""
        blocks = self._pool.allocate(count)
        if self._tiers is not None:
            self._moves += self._tiers.before_reuse(blocks)
        return blocks

    def _load_blocks(
        self, table: Table, cached: CachedPrefix, token_ids: Sequence[int]
    ) -> Restored:
        """Take blocks for what is below the pool, and have them filled."""
        assert self._tiers is not None, "blocks from below without lower tiers"
        assert table.chain is not None, "a cached prefix without keys"
        chain = table.chain
        wanted = self._wanted(chain, cached, token_ids, (IN_RAM,))
        # Held before blocks are taken: taking one may send another block's content down.
        slots = [self._tiers.hold(content) for _, _, content in wanted]
        blocks = self._allocate(len(wanted))
        self._moves += map(BlockLoad, slots, blocks)
        for (group, index, content), block in zip(wanted, blocks, strict=True):
            if index == len(table.groups[group]):  # The tail.
                table.groups[group].append(block)
                continue
            table.groups[group][index] = block
            self._pool.publish(block, content, self._child(chain, group, index, token_ids))
        return self._origin(cached, wanted, slots)

    def _wanted(
        self,
        chain: KeyChain,
        cached: CachedPrefix,
        token_ids: Sequence[int],
        places: Sequence[BlockId],
    ) -> list[tuple[int, int, BlockContent]]:
        """Group, logical block and content of what a prefix has in these places, in order."""
        num_whole = len(cached.block_ids[0])
        wanted = [
            (index, group, BlockContent(group, chain.key(token_ids, index)))
            for group, blocks in enumerate(cached.block_ids)
            for index, block in enumerate(blocks)
            if block in places
        ]
        if cached.tail_sources and cached.tail_sources[0] < 0:
            key = chain.tail_key(token_ids, cached.num_tokens)
            wanted += [
                (num_whole, group, BlockContent(group, key)) for group in range(self.num_groups)
            ]
        return [(group, index, content) for index, group, content in sorted(wanted)]

    def _origin(
        self,
        cached: CachedPrefix,
        wanted: Sequence[tuple[int, int, BlockContent]],
        slots: Sequence[int],
    ) -> Restored:
        """How many tokens came up, counted once for all groups; from disk if any of them did."""
        assert self._tiers is not None
        fresh = [self._tiers.came_from_disk(slot) for slot in slots]
        disk = {index for (_, index, _), is_fresh in zip(wanted, fresh, strict=True) if is_fresh}
        ram = {index for _, index, _ in wanted} - disk

        def count(indices: set[int]) -> int:
            return sum(
                min(self._block_size, cached.num_tokens - index * self._block_size)
                for index in indices
            )

        return Restored(count(ram), count(disk))

    def _send_down(
        self, table: Table, chain: KeyChain, tiers: LowerTiers, token_ids: Sequence[int]
    ) -> None:
        """Have those blocks copied down that a released request was the last to hold."""
        full = table.num_published
        keys = dict(enumerate(chain.keys(token_ids, full) if full else ()))
        if token_ids and table.num_computed > full * self._block_size:
            keys[full] = chain.tail_key(token_ids, table.num_computed)
        for index in sorted(keys, reverse=True):
            for group, blocks in enumerate(table.groups):
                block = blocks[index]
                if block != NO_BLOCK and self._pool.num_holders(block) == 0:
                    tiers.freed(block, BlockContent(group, keys[index]))

    def _child(self, chain: KeyChain, group: int, index: int, token_ids: Sequence[int]) -> Child:
        start = index * self._block_size
        parent = BlockContent(group, chain.parent(token_ids, index))
        return Child(parent, tuple(token_ids[start : start + self._block_size]))
