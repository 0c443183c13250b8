"""Hypothesis looks for forks and writes after which a request reads another one's tokens.

A model of the memory is written as plans say: copies first, then tokens. Whatever a request still
needs must read as its own sequence, at any time, and so must everything that the cache finds.
"""

from collections.abc import Sequence

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kokuban.core.request import NO_BLOCK, BlockId, RequestId
from kokuban.core.step import BlockCopy
from kokuban.kvcache.blocks import first_needed
from kokuban.kvcache.manager import Manager
from kokuban.kvcache.pool import BlockPool
from kokuban.kvcache.prefix import KeySpace

SIZE = 4
TOKENS = st.lists(st.integers(0, 1), min_size=1, max_size=9)
SPACE = KeySpace(
    secret=b"0123456789abcdef",
    model_digest=b"model",
    numerics_id="v1",
    kv_dtype="bf16",
    block_size=SIZE,
)

Slot = tuple[int, int, int]
"""Group, position and token whose K and V a slot holds."""


class AnyForks(RuleBasedStateMachine):
    """Sequences over an alphabet of two tokens, so that many begin alike."""

    @initialize(
        num_blocks=st.integers(4, 30),
        windows=st.sampled_from([(None,), (None, 3), (None, 1, 9)]),
        prefix_cache=st.booleans(),
    )
    def start(self, num_blocks: int, windows: Sequence[int | None], prefix_cache: bool) -> None:
        self.windows = windows
        self.pool = BlockPool(num_blocks)
        self.manager = Manager(
            self.pool,
            block_size=SIZE,
            windows=windows,
            key_space=SPACE if prefix_cache else None,
        )
        self.memory: dict[tuple[BlockId, int], Slot] = {}
        self.sequences: dict[RequestId, list[int]] = {}
        self.rows: dict[RequestId, list[list[BlockId]]] = {}
        self.num_begun = 0

    @rule(tokens=TOKENS)
    def begin(self, tokens: list[int]) -> None:
        chain = self.manager.make_chain("")
        cached = self.manager.find_cached_prefix(chain, tokens)
        if self.manager.num_lent(cached) + 2 * len(self.windows) > self.manager.num_free:
            return
        name = self._new_row()
        self.manager.begin(name, chain, cached, tokens)
        self._copy_blocks()
        self.sequences[name] = tokens[: cached.num_tokens]
        self._write(name, tokens[cached.num_tokens :])

    @precondition(lambda self: self.sequences)
    @rule(data=st.data(), back=st.integers(0, 6))
    def fork(self, data: st.DataObject, back: int) -> None:
        parent = data.draw(st.sampled_from(sorted(self.sequences)))
        num_tokens = len(self.sequences[parent]) - back
        if num_tokens < 1 or not self.manager.can_fork(parent, num_tokens):
            assert num_tokens < 1 or self.windows != (None,), "a full group forks anywhere"
            return
        child = self._new_row()
        num_free = self.manager.num_free
        self.manager.fork(parent, child, num_tokens, self.manager.make_chain(""))
        assert self.manager.num_free == num_free
        self.sequences[child] = self.sequences[parent][:num_tokens]

    @precondition(lambda self: self.sequences)
    @rule(data=st.data(), tokens=TOKENS)
    def write(self, data: st.DataObject, tokens: list[int]) -> None:
        self._write(data.draw(st.sampled_from(sorted(self.sequences))), tokens)

    @precondition(lambda self: self.sequences)
    @rule(data=st.data(), keep_tail=st.booleans())
    def release(self, data: st.DataObject, keep_tail: bool) -> None:
        name = data.draw(st.sampled_from(sorted(self.sequences)))
        tokens = self.sequences.pop(name)
        del self.rows[name]
        self.manager.release(name, tokens if keep_tail else ())

    @invariant()
    def everybody_reads_its_own_tokens(self) -> None:
        if not hasattr(self, "manager"):
            return
        self.manager.check()
        for name, tokens in self.sequences.items():
            for group in range(len(self.windows)):
                self._check_reads(self.manager.block_table(name, group), group, tokens)

    @precondition(lambda self: hasattr(self, "manager"))
    @rule(tokens=TOKENS)
    def look_up(self, tokens: list[int]) -> None:
        cached = self.manager.find_cached_prefix(self.manager.make_chain(""), tokens)
        for group, blocks in enumerate(cached.block_ids):
            table = (*blocks, *cached.tail_sources[group : group + 1])
            self._check_reads(table, group, tokens[: cached.num_tokens])

    def teardown(self) -> None:
        if hasattr(self, "manager"):
            for name in self.sequences:
                self.manager.release(name)
            assert self.pool.num_free == self.pool.num_blocks

    def _new_row(self) -> RequestId:
        name = RequestId(f"r{self.num_begun}")
        self.num_begun += 1
        self.rows[name] = [[] for _ in self.windows]
        return name

    def _write(self, name: RequestId, tokens: Sequence[int]) -> None:
        sequence = self.sequences[name]
        begin = len(sequence)
        end = self.manager.num_tokens_fitting(name, begin + len(tokens))
        assert end >= begin
        if end == begin:
            return
        rewrites = self.manager.copy_on_write(name)
        new = self.manager.grow(name, end)
        self.manager.check()
        self._copy_blocks()
        tables = self.rows[name]
        for group, index, block in rewrites:
            tables[group][index] = block
        for group, blocks in enumerate(new):
            tables[group] += blocks
            for position, token in enumerate(tokens[: end - begin], start=begin):
                block = tables[group][position // SIZE]
                self.memory[block, position % SIZE] = (group, position, token)
        sequence += tokens[: end - begin]
        self.manager.advance(name, end, sequence)

    def _copy_blocks(self) -> None:
        for move in self.manager.take_moves():
            assert isinstance(move, BlockCopy)
            for offset in range(SIZE):
                self.memory.pop((move.target, offset), None)
                if (slot := self.memory.get((move.source, offset))) is not None:
                    self.memory[move.target, offset] = slot

    def _check_reads(self, table: Sequence[BlockId], group: int, tokens: Sequence[int]) -> None:
        window = self.windows[group]
        first = 0 if window is None else SIZE * first_needed(len(tokens), window, SIZE)
        for position in range(first, len(tokens)):
            block = table[position // SIZE]
            assert block != NO_BLOCK
            assert self.memory[block, position % SIZE] == (group, position, tokens[position])


AnyForks.TestCase.settings = settings(
    max_examples=150, stateful_step_count=30, deadline=None, derandomize=True
)
TestAnyForks = AnyForks.TestCase
