"""Hypothesis looks for calls, restarts and damage after which a disk store says something wrong."""

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.unit.kvcache.disk_blocks import SLOT_BYTES, content, numbers_of, open_store, put, right

from kokuban.kvcache.disk_store import DiskStore
from kokuban.kvcache.namespace import INDEX_NAME

MAX_BLOCKS = 4
NUMBERS = st.integers(0, 6)


class AnyOrderOfCalls(RuleBasedStateMachine):
    """A model of the store: the blocks in it, next to be evicted first."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.store = self.open()
        self.order: list[int] = []
        self.damaged: set[int] = set()

    def open(self) -> DiskStore:
        return open_store(self.directory, max_blocks=MAX_BLOCKS, slots_per_segment=3)

    @rule(number=NUMBERS)
    def put(self, number: int) -> None:
        assert put(self.store, number) == [True]
        if number in self.order:
            self.order.remove(number)
        elif len(self.order) == MAX_BLOCKS:
            self.damaged.discard(self.order.pop(0))
        self.order.append(number)

    @rule(number=NUMBERS)
    def read(self, number: int) -> None:
        there = number in self.order
        assert right(self.store, number) == [there and number not in self.damaged]
        if there:
            self.order.remove(number)
            if number not in self.damaged:
                self.order.append(number)
        self.damaged.discard(number)

    @rule(number=NUMBERS)
    def touch(self, number: int) -> None:
        assert self.store.touch(content(number)) == (number in self.order)
        if number in self.order:
            self.order.remove(number)
            self.order.append(number)

    @rule(number=NUMBERS)
    def remove(self, number: int) -> None:
        assert self.store.remove(content(number)) == (number in self.order)
        if number in self.order:
            self.order.remove(number)
        self.damaged.discard(number)

    @rule()
    def clear(self) -> None:
        self.store.clear()
        self.order.clear()
        self.damaged.clear()

    @rule()
    def restart(self) -> None:
        self.store.close()
        self.store = self.open()

    @rule()
    def restart_without_index(self) -> None:
        """The order of use is lost, and blocks whose header is damaged are not found."""
        self.store.close()
        (self.directory / INDEX_NAME).unlink()
        self.store = self.open()
        assert set(numbers_of(self.store)) == set(self.order) - self.damaged
        self.order = numbers_of(self.store)
        self.damaged.clear()

    @rule(number=NUMBERS)
    def damage(self, number: int) -> None:
        """Overwrite the header of a block, and what free slots still have of it."""
        for segment in self.directory.glob("segment-*.kv"):
            data = bytearray(segment.read_bytes())
            for start in range(0, len(data), SLOT_BYTES):
                if data[start + 24 : start + 56] == content(number).key:
                    data[start : start + 8] = b"rubbish!"
                    segment.write_bytes(data)
        if number in self.order:
            self.damaged.add(number)

    @rule()
    def verify(self) -> None:
        report = self.store.verify()
        assert report.num_blocks == len(self.order)
        assert set(report.bad) == {content(number) for number in self.damaged}

    @invariant()
    def the_store_knows_what_the_model_knows(self) -> None:
        self.store.check()
        assert numbers_of(self.store) == self.order
        assert self.damaged <= set(self.order)

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.directory)


AnyOrderOfCalls.TestCase.settings = settings(
    max_examples=40, stateful_step_count=25, deadline=None, derandomize=True
)
TestAnyOrderOfCalls = AnyOrderOfCalls.TestCase
