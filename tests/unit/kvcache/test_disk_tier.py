import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.unit.kvcache.disk_blocks import (
    PAYLOAD_BYTES,
    content,
    numbers_of,
    open_store,
    payload,
    put,
    right,
)

from kokuban.core.errors import StoreInUse
from kokuban.kvcache.disk_store import DiskStore
from kokuban.kvcache.disk_tier import DiskTier, Done
from kokuban.kvcache.pool import BlockContent

NUM_SLOTS = 8
WAIT_S = 20.0


class Host:
    """Slots of host memory, an engine that can wait to be woken, and a gate before the disk."""

    def __init__(self) -> None:
        self.slots = [bytearray(PAYLOAD_BYTES) for _ in range(NUM_SLOTS)]
        self.gate = threading.Event()
        self.gate.set()
        self.at_gate = threading.Event()
        self.wakes = threading.Semaphore(0)
        self.threads: set[str] = set()

    def view(self, slot: int) -> memoryview:
        self.at_gate.set()
        assert self.gate.wait(WAIT_S), "the gate stayed closed"
        self.threads.add(threading.current_thread().name)
        return memoryview(self.slots[slot])

    def fill(self, slot: int, number: int) -> BlockContent:
        self.slots[slot][:] = payload(content(number))
        return content(number)

    def wait(self, jobs: int = 1) -> None:
        for _ in range(jobs):
            assert self.wakes.acquire(timeout=WAIT_S), "the engine was not woken"


@pytest.fixture
def host() -> Host:
    return Host()


MakeTier = Callable[..., DiskTier]


@pytest.fixture
def make_tier(host: Host, tmp_path: Path) -> Iterator[MakeTier]:
    made: list[DiskTier] = []

    def make(store: DiskStore | None = None, *, max_queued_writes: int = 4) -> DiskTier:
        tier = DiskTier(
            store or open_store(tmp_path),
            host.view,
            max_queued_writes=max_queued_writes,
            on_done=host.wakes.release,
        )
        made.append(tier)
        return tier

    yield make
    host.gate.set()
    for tier in made:
        tier.close(WAIT_S)


def hold(host: Host, tier: DiskTier, slot: int = 7) -> None:
    """Keep the I/O thread busy with the reading of a block that is not there."""
    host.gate.clear()
    host.at_gate.clear()
    tier.read(content(199), slot)
    assert host.at_gate.wait(WAIT_S)


def test_a_slot_goes_to_disk_and_comes_back_in_another(host: Host, make_tier: MakeTier) -> None:
    tier = make_tier()
    block = host.fill(0, 1)

    assert not tier.contains(block)
    assert tier.write(block, 0)
    host.wait()
    assert tier.take_done() == [Done("write", block, 0, ok=True)]
    assert tier.contains(block)

    tier.read(block, 3)
    host.wait()
    assert tier.take_done() == [Done("read", block, 3, ok=True)]
    assert host.slots[3] == payload(block)
    assert tier.take_done() == []
    assert tier.num_pending == 0
    assert host.threads == {"kv-disk"}


def test_a_block_that_is_not_there_ends_as_not_ok(host: Host, make_tier: MakeTier) -> None:
    tier = make_tier()

    tier.read(content(5), 0)
    host.wait()

    assert tier.take_done() == [Done("read", content(5), 0, ok=False)]


def test_reads_go_before_writes(host: Host, make_tier: MakeTier, tmp_path: Path) -> None:
    store = open_store(tmp_path)
    put(store, 10, 11)
    tier = make_tier(store)
    hold(host, tier)

    assert tier.write(host.fill(0, 1), 0)
    assert tier.write(host.fill(1, 2), 1)
    tier.read(content(10), 2)
    tier.read(content(11), 3)
    assert tier.num_pending == 5
    host.gate.set()
    host.wait(5)

    assert [(done.kind, done.slot, done.ok) for done in tier.take_done()] == [
        ("read", 7, False), ("read", 2, True), ("read", 3, True),
        ("write", 0, True), ("write", 1, True),
    ]  # fmt: skip


def test_writes_beyond_the_queue_are_dropped_and_counted(host: Host, make_tier: MakeTier) -> None:
    tier = make_tier(max_queued_writes=2)
    hold(host, tier)

    rooms = [tier.room]
    taken = []
    for slot in range(4):
        taken.append(tier.write(host.fill(slot, slot), slot))
        rooms.append(tier.room)
    stats = tier.stats()
    host.gate.set()
    host.wait(3)

    assert taken == [True, True, False, False]
    assert rooms == [2, 1, 0, 0, 0]
    assert (stats.dropped, stats.queued_writes, stats.queued_reads) == (2, 2, 0)
    assert [tier.contains(content(number)) for number in range(4)] == [True, True, False, False]
    assert tier.stats().written == 2
    assert tier.stats().write_s > 0


def test_an_exception_ends_its_job_and_not_the_thread(
    host: Host, make_tier: MakeTier, caplog: pytest.LogCaptureFixture
) -> None:
    tier = make_tier()
    host.slots[2] = bytearray(5)

    assert tier.write(content(1), 2)  # A slot of the wrong size is a fault of ours.
    tier.read(content(1), 100)
    host.wait(2)
    assert tier.write(host.fill(0, 3), 0)
    host.wait()

    done = {(each.kind, each.content): each.ok for each in tier.take_done()}
    assert done == {
        ("write", content(1)): False, ("read", content(1)): False, ("write", content(3)): True
    }  # fmt: skip
    assert tier.stats().failed == 2
    assert caplog.text.count("could not be moved") == 2


def test_an_engine_that_fails_to_wake_does_not_end_the_thread(
    host: Host, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def on_done() -> None:
        host.wakes.release()
        raise RuntimeError("closed loop")

    tier = DiskTier(open_store(tmp_path), host.view, max_queued_writes=4, on_done=on_done)
    for slot in (0, 1):
        assert tier.write(host.fill(slot, slot), slot)
        host.wait()

    assert tier.close(WAIT_S) == 0
    assert len(tier.take_done()) == 2
    assert "could not be woken" in caplog.text


def test_clearing_hides_all_at_once_and_cancels_writes(
    host: Host, make_tier: MakeTier, tmp_path: Path
) -> None:
    store = open_store(tmp_path)
    put(store, 10, 11)
    tier = make_tier(store)
    hold(host, tier)
    assert tier.write(host.fill(0, 1), 0)
    tier.read(content(10), 2)

    tier.clear()

    assert not tier.contains(content(11))
    assert tier.take_done() == [Done("write", content(1), 0, ok=False)]
    assert tier.write(host.fill(1, 2), 1)
    host.gate.set()
    host.wait(4)  # cancelled write, held read, read, write
    assert tier.take_done() == [
        Done("read", content(199), 7, ok=False),
        Done("read", content(10), 2, ok=True),
        Done("write", content(2), 1, ok=True),
    ]
    assert numbers_of(store) == [2]
    assert [tier.contains(content(number)) for number in (1, 2, 10, 11)] == [
        False, True, False, False
    ]  # fmt: skip


def test_closing_cancels_reads_and_finishes_writes(host: Host, tmp_path: Path) -> None:
    # The first wake-up comes from `close`, when it has cancelled the reads.
    tier = DiskTier(open_store(tmp_path), host.view, max_queued_writes=4, on_done=host.gate.set)
    hold(host, tier)
    for slot in range(3):
        assert tier.write(host.fill(slot, slot), slot)
    tier.read(content(0), 5)

    assert tier.close(WAIT_S) == 0

    assert [(done.kind, done.slot, done.ok) for done in tier.take_done()] == [
        ("read", 5, False), ("read", 7, False),
        ("write", 0, True), ("write", 1, True), ("write", 2, True),
    ]  # fmt: skip
    assert not tier.write(content(9), 0)
    tier.read(content(0), 6)
    assert tier.take_done() == [Done("read", content(0), 6, ok=False)]
    store = open_store(tmp_path)
    assert right(store, 0, 1, 2) == [True, True, True]
    store.close()


def test_closing_tells_how_many_writes_were_lost(
    host: Host, make_tier: MakeTier, tmp_path: Path
) -> None:
    tier = make_tier()
    host.gate.clear()
    for slot in range(3):
        assert tier.write(host.fill(slot, slot), slot)
    assert host.at_gate.wait(WAIT_S)

    assert tier.close(0.0, last_job_s=0.0) == 3

    with pytest.raises(StoreInUse):
        open_store(tmp_path)
    host.gate.set()
    assert tier.close(WAIT_S) == 0
    store = open_store(tmp_path)
    assert right(store, 0, 1, 2) == [True, False, False]
    store.close()


def test_the_engine_may_ask_while_blocks_move(host: Host, make_tier: MakeTier) -> None:
    tier = make_tier(max_queued_writes=1000)
    blocks = [host.fill(0, number) for number in range(40)]
    for slot in range(NUM_SLOTS):
        host.fill(slot, slot)

    for number in range(1000):
        block = blocks[number % NUM_SLOTS]
        tier.write(block, number % NUM_SLOTS)
        tier.contains(block)
        tier.touch(block)
        tier.stats()
        if number % 100 == 0:
            tier.clear()
    while tier.num_pending:
        host.wait()

    done = tier.take_done()
    assert len(done) + tier.stats().dropped == 1000
    assert tier.stats().failed == 0
