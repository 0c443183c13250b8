"""Hypothesis looks for calls after which the block pool contradicts itself."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kokuban.core.request import BlockId
from kokuban.kvcache.pool import BlockContent, BlockKey, BlockPool

NUM_BLOCKS = 4
CONTENTS = [BlockContent(group, BlockKey(key)) for group, key in [(0, b"a"), (0, b"b"), (1, b"a")]]


class AnyOrderOfCalls(RuleBasedStateMachine):
    """A model of the pool: what is held how often, and what each block was published as."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(NUM_BLOCKS)
        self.held: list[BlockId] = []
        self.unpublished: set[BlockId] = set()
        self.contents: dict[BlockContent, BlockId] = {}

    @rule(count=st.integers(0, NUM_BLOCKS))
    def allocate(self, count: int) -> None:
        if count > self.pool.num_free:
            return
        expected = self.pool.free_order()[:count]
        blocks = self.pool.allocate(count)
        assert tuple(blocks) == expected
        self.held += blocks
        self.unpublished.update(blocks)
        self.contents = {key: block for key, block in self.contents.items() if block not in blocks}

    @precondition(lambda self: self.unpublished)
    @rule(data=st.data(), content=st.sampled_from(CONTENTS))
    def publish(self, data: st.DataObject, content: BlockContent) -> None:
        block = data.draw(st.sampled_from(sorted(self.unpublished)))
        self.unpublished.remove(block)
        self.pool.publish(block, content)
        self.contents.setdefault(content, block)

    @rule(content=st.sampled_from(CONTENTS))
    def revive(self, content: BlockContent) -> None:
        found = self.pool.lookup(content)
        assert found == self.contents.get(content)
        if found is not None:
            self.pool.retain(found)
            self.held.append(found)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(self.held))
        self.held.remove(block)
        self.unpublished -= {block} - set(self.held)
        self.pool.release([block])

    @invariant()
    def nothing_is_lost_and_nothing_is_held_twice(self) -> None:
        self.pool.check()
        assert self.pool.num_free == NUM_BLOCKS - len(set(self.held))
        assert self.pool.num_published == len(self.contents)
        for block in map(BlockId, range(NUM_BLOCKS)):
            assert self.pool.num_holders(block) == self.held.count(block)


AnyOrderOfCalls.TestCase.settings = settings(
    max_examples=100, stateful_step_count=30, deadline=None, derandomize=True
)
TestAnyOrderOfCalls = AnyOrderOfCalls.TestCase
