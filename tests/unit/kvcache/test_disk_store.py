import errno
import logging
import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.fakes import FakeClock
from tests.unit.kvcache.disk_blocks import (
    FACTS,
    PAYLOAD_BYTES,
    SLOT_BYTES,
    content,
    limit_for,
    numbers_of,
    open_store,
    payload,
    put,
    read,
    right,
)

from kokuban.core.errors import ConfigError, StoreInUse
from kokuban.kvcache.disk_store import DiskCounters, DiskStore, VerifyReport
from kokuban.kvcache.namespace import DESCRIPTION_NAME, DRAFT_NAME, INDEX_NAME, LOCK_NAME

SEGMENT = "segment-00000.kv"


@contextmanager
def opened(directory: Path, **options: object) -> Iterator[DiskStore]:
    store = open_store(directory, **options)  # type: ignore[arg-type]
    try:
        store.check()
        yield store
        store.check()
    finally:
        store.close()


def fill(directory: Path, *numbers: int) -> None:
    with opened(directory) as store:
        assert all(put(store, *numbers))


def files(directory: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in directory.iterdir()}


def flip(path: Path, offset: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1 << bit
    path.write_bytes(data)


def test_a_block_comes_back_as_it_was_written(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        assert not store.contains(content(1))
        assert read(store, content(1)) is None

        assert put(store, 1)

        assert store.contains(content(1))
        assert read(store, content(1)) == payload(content(1))
        assert store.counters == DiskCounters(written=1, read=1)


def test_the_same_key_in_another_group_is_another_block(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, 1)

        assert not store.contains(content(1, group=1))
        store.put(content(1, group=1), payload(content(1, group=1)))

        assert read(store, content(1)) == payload(content(1))
        assert read(store, content(1, group=1)) == payload(content(1, group=1))


def test_a_block_that_is_there_is_not_written_again(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, 1, 2)

        assert store.put(content(1), bytes(PAYLOAD_BYTES))

        assert read(store, content(1)) == payload(content(1))
        assert store.counters.written == 2
        assert numbers_of(store) == [2, 1]


def test_blocks_and_their_order_outlive_the_process(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, *range(20))
        store.touch(content(3))
        read(store, content(5))

    with opened(tmp_path) as store:
        assert numbers_of(store) == [*range(3), 4, *range(6, 20), 3, 5]
        assert all(right(store, *range(20)))
        assert store.counters == DiskCounters(read=20)


def test_the_block_used_longest_ago_makes_room(tmp_path: Path) -> None:
    with opened(tmp_path, max_blocks=3) as store:
        put(store, 1, 2, 3)
        store.touch(content(1))
        read(store, content(2))

        put(store, 4)

        assert numbers_of(store) == [1, 2, 4]
        assert right(store, 1, 2, 3, 4) == [True, True, False, True]
        assert store.counters.evicted == 1
        assert files(tmp_path)[SEGMENT] <= 3 * SLOT_BYTES


def test_the_limit_holds_for_all_files_together(tmp_path: Path) -> None:
    limit = limit_for(60)
    with opened(tmp_path, max_blocks=60) as store:
        largest = 0
        for number in range(150):
            put(store, number)
            largest = max(largest, sum(files(tmp_path).values()))
            assert sum(files(tmp_path).values()) <= store.num_bytes <= limit

        assert store.num_blocks == store.max_blocks == 60
        assert numbers_of(store) == list(range(90, 150))
        assert 60 * SLOT_BYTES < largest <= limit


def test_a_smaller_limit_gives_space_back(tmp_path: Path) -> None:
    fill(tmp_path, *range(20))
    assert set(files(tmp_path)) >= {SEGMENT, "segment-00001.kv", "segment-00002.kv"}

    with opened(tmp_path, max_blocks=5) as store:
        assert numbers_of(store) == list(range(5))
        assert store.counters.lost_at_open == 15
        assert files(tmp_path)[SEGMENT] == 5 * SLOT_BYTES
        assert "segment-00001.kv" not in files(tmp_path)
        put(store, 50)
        assert numbers_of(store) == [1, 2, 3, 4, 50]


def test_a_limit_without_room_for_a_block_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"allow 1,118,336 bytes or more"):
        DiskStore.open(
            tmp_path,
            payload_bytes=PAYLOAD_BYTES,
            max_bytes=limit_for(1) - 1,
            secret=bytes(32),
            facts=FACTS,
        )

    assert limit_for(1) == 1_118_336


def test_a_removed_block_leaves_its_slot_to_the_next(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, 1, 2, 3)

        assert store.remove(content(1))
        assert not store.remove(content(1))
        put(store, 4)

        assert right(store, 1, 2, 3, 4) == [False, True, True, True]
        assert files(tmp_path)[SEGMENT] == 2 * SLOT_BYTES + 128 + PAYLOAD_BYTES
        assert store.counters.bad == 0


def test_a_removed_block_is_not_found_by_its_header(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, 1, 2)
        store.remove(content(1))
    (tmp_path / INDEX_NAME).unlink()

    with opened(tmp_path) as store:
        assert numbers_of(store) == [2]


def test_clearing_forgets_all_and_gives_the_space_back(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, *range(20))

        store.clear()

        assert store.contents() == ()
        assert right(store, *range(20)) == [False] * 20
        assert not [name for name in files(tmp_path) if name.startswith("segment")]
        put(store, 7)
    with opened(tmp_path) as store:
        assert numbers_of(store) == [7]


@pytest.mark.parametrize(
    "offset",
    [0, 8, 12, 16, 24, 55, 56, 88, 95, 96, 127, 128, 128 + PAYLOAD_BYTES - 1],
)
def test_a_flipped_bit_anywhere_in_a_slot_is_a_miss(tmp_path: Path, offset: int) -> None:
    fill(tmp_path, 1, 2, 3)
    flip(tmp_path / SEGMENT, SLOT_BYTES + offset, bit=offset % 8)

    with opened(tmp_path) as store:
        assert right(store, 1, 2, 3) == [True, False, True]
        assert not store.contains(content(2))
        assert store.counters == DiskCounters(read=2, bad=1)
        put(store, 2)
        assert right(store, 1, 2, 3) == [True, True, True]


def test_a_slot_that_holds_another_block_by_now_is_a_miss(tmp_path: Path) -> None:
    fill(tmp_path, 1, 2)
    segment = tmp_path / SEGMENT
    data = segment.read_bytes()
    segment.write_bytes(data[SLOT_BYTES:].ljust(SLOT_BYTES, b"\0") + data[:SLOT_BYTES])

    with opened(tmp_path) as store:
        assert right(store, 1, 2) == [False, False]
        assert store.counters.bad == 2


def test_blocks_behind_the_end_of_a_file_are_dropped_at_the_start(tmp_path: Path) -> None:
    fill(tmp_path, 1, 2, 3)
    os.truncate(tmp_path / SEGMENT, 2 * SLOT_BYTES + 500)

    with opened(tmp_path) as store:
        assert numbers_of(store) == [1, 2]
        assert store.counters.lost_at_open == 1
        assert files(tmp_path)[SEGMENT] == 2 * SLOT_BYTES


def test_a_file_that_is_cut_while_the_store_is_open_gives_misses(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, *range(10))
        os.truncate(tmp_path / SEGMENT, SLOT_BYTES + 60)
        (tmp_path / "segment-00001.kv").unlink()

        assert right(store, *range(8)) == [True] + [False] * 7
        assert store.counters.bad == 7


def test_a_slot_that_the_disk_cannot_read_is_a_miss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(file: int, buffers: list[memoryview], offset: int) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with opened(tmp_path) as store:
        put(store, 1, 2, 3)
        with monkeypatch.context() as patch:
            patch.setattr(os, "preadv", fail)
            assert right(store, 1, 2) == [False, False]

        assert numbers_of(store) == [3]
        assert right(store, 1, 2, 3) == [False, False, True]
        assert store.counters == DiskCounters(written=3, read=1, bad=2)
    assert caplog.text.count("is damaged") == 1, "one warning, whatever the number of bad blocks"


def test_files_without_blocks_are_collected(tmp_path: Path) -> None:
    fill(tmp_path, 1, 2)
    (tmp_path / "segment-00007.kv").write_bytes(bytes(5000))
    (tmp_path / DRAFT_NAME).write_bytes(b"{")
    (tmp_path / "notes.txt").write_text("not ours")
    with (tmp_path / SEGMENT).open("ab") as file:
        file.write(bytes(3 * SLOT_BYTES))

    with opened(tmp_path) as store:
        assert all(right(store, 1, 2))
        names = set(files(tmp_path))
        assert names - {INDEX_NAME + "-wal"} == {
            SEGMENT, "notes.txt", DESCRIPTION_NAME, INDEX_NAME, LOCK_NAME
        }  # fmt: skip
        assert files(tmp_path)[SEGMENT] == 2 * SLOT_BYTES


@pytest.mark.parametrize(
    "damage", ["text", "cut", "other application", "gone", "table", "symlink", "order of rows"]
)
def test_an_index_that_cannot_be_used_is_made_anew_from_headers(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "store"
    fill(directory, *range(12))
    index = directory / INDEX_NAME
    if damage == "text":
        index.write_text("hello")
    elif damage == "cut":
        os.truncate(index, 5000)
    elif damage == "gone":
        index.unlink()
    elif damage == "order of rows":
        # The number of a row stands 6 bytes before the key; the query alone would not notice.
        flip(index, index.read_bytes().index(content(5).key) - 6, bit=6)
    elif damage == "symlink":
        index.rename(tmp_path / "elsewhere")
        index.symlink_to(tmp_path / "elsewhere")
    else:
        connection = sqlite3.connect(index)
        command = (
            "PRAGMA application_id=5" if damage == "other application" else "CREATE TABLE x(y)"
        )
        connection.execute(command)
        connection.close()

    with opened(directory) as store:
        assert sorted(numbers_of(store)) == list(range(12))
        assert all(right(store, *range(12)))
        assert store.counters == DiskCounters(read=12)
        assert not index.is_symlink()

    assert "12 KV blocks on disk were found by their headers" in caplog.text
    if damage == "symlink":
        assert (tmp_path / "elsewhere").stat().st_size > 0


def test_rows_that_cannot_be_true_are_dropped(tmp_path: Path) -> None:
    fill(tmp_path, 1, 2, 3)
    connection = sqlite3.connect(tmp_path / INDEX_NAME)
    with connection:
        rows = [
            (500, 0, content(4).key, 9),  # no such slot
            (1, 0, content(1).key, 9),  # block 1 is in slot 0 already; slot 1 had block 2
            (2, 0, b"short", 9),
        ]
        connection.executemany("INSERT OR REPLACE INTO slots VALUES (?, ?, ?, ?)", rows)
    connection.close()

    with opened(tmp_path) as store:
        assert numbers_of(store) == [1]
        assert all(right(store, 1))
        assert store.counters.lost_at_open == 2


def test_blocks_of_another_secret_are_deleted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fill(tmp_path, 1, 2)

    with opened(tmp_path, secret=b"x" * 32) as store:
        assert right(store, 1, 2) == [False, False]
        put(store, 1)

    assert "another shape or secret; they are deleted" in caplog.text
    with opened(tmp_path, secret=b"x" * 32) as store:
        assert right(store, 1, 2) == [True, False]


def test_blocks_of_another_size_are_deleted(tmp_path: Path) -> None:
    fill(tmp_path, 1, 2)

    with opened(tmp_path, payload_bytes=3000) as store:
        assert store.num_blocks == 0
        assert store.put(content(1), payload(content(1), 3000))
        assert read(store, content(1)) == payload(content(1), 3000)


def test_a_damaged_description_costs_no_block(tmp_path: Path) -> None:
    fill(tmp_path, 1, 2)
    description = tmp_path / DESCRIPTION_NAME
    before = description.read_bytes()
    description.write_bytes(before.replace(b"2000", b"3000"))

    with opened(tmp_path) as store:
        assert right(store, 1, 2) == [True, True]

    assert description.read_bytes() == before


def test_a_directory_in_use_is_named(tmp_path: Path) -> None:
    with opened(tmp_path), pytest.raises(StoreInUse, match=f"{tmp_path} is in use by another"):
        open_store(tmp_path)

    with opened(tmp_path):
        pass


def test_only_the_owner_can_read(tmp_path: Path) -> None:
    directory = tmp_path / "store"
    fill(directory, 1)

    with opened(directory) as store:
        put(store, 2)
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()}
        assert set(modes.values()) == {0o600}
        assert {SEGMENT, INDEX_NAME, INDEX_NAME + "-wal", DESCRIPTION_NAME, LOCK_NAME} == set(modes)


def test_no_symbolic_link_is_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"precious")
    directory = tmp_path / "store"
    directory.mkdir()
    for name in (SEGMENT, "segment-00001.kv", DESCRIPTION_NAME, DRAFT_NAME, INDEX_NAME):
        (directory / name).symlink_to(outside)

    with opened(directory) as store:
        assert all(put(store, *range(9)))
        assert all(right(store, *range(9)))

    assert outside.read_bytes() == b"precious"
    assert [path.name for path in directory.iterdir() if path.is_symlink()] == []
    (tmp_path / "link").symlink_to(directory)
    with pytest.raises(ConfigError, match=r"link cannot be used for KV blocks"):
        open_store(tmp_path / "link")


def test_verify_tells_bad_blocks_and_drops_them_when_asked(tmp_path: Path) -> None:
    fill(tmp_path, *range(10))
    flip(tmp_path / SEGMENT, 3 * SLOT_BYTES + 200)
    flip(tmp_path / "segment-00001.kv", SLOT_BYTES + 30)

    with opened(tmp_path) as store:
        order = numbers_of(store)
        assert store.verify() == VerifyReport(num_blocks=10, bad=(content(3), content(9)))
        assert numbers_of(store) == order
        assert store.verify(fix=True).bad == (content(3), content(9))
        assert store.verify() == VerifyReport(num_blocks=8, bad=())
        assert store.counters == DiskCounters(bad=2)


class FullDisk:
    """Stands in for `os.pwritev` and refuses while it is full."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
        self.full = False
        self._code = code
        self._write = os.pwritev
        monkeypatch.setattr(os, "pwritev", self)

    def __call__(self, file: int, buffers: list[memoryview], offset: int) -> int:
        if self.full:
            raise OSError(self._code, os.strerror(self._code))
        return self._write(file, buffers, offset)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO])
def test_a_full_disk_pauses_writing_and_reading_goes_on(
    tmp_path: Path, code: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock, disk = FakeClock(), FullDisk(monkeypatch, code)
    with opened(tmp_path, clock=clock) as store:
        put(store, 1)

        disk.full = True
        assert put(store, 2, 3) == [False, False]
        assert store.is_paused
        disk.full = False
        assert put(store, 2) == [False], "tried again at once"
        assert right(store, 1, 2, 3) == [True, False, False]

        clock.advance(10.0)
        disk.full = True
        assert put(store, 2) == [False]
        disk.full = False
        clock.advance(19.9)
        assert put(store, 2) == [False], "the second pause is twice as long"
        clock.advance(0.1)
        assert put(store, 2, 3) == [True, True]
        assert right(store, 1, 2, 3) == [True, True, True]
        assert store.counters == DiskCounters(written=3, read=4, refused=5)

    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "reading goes on" in warnings[0].getMessage()


def test_an_index_that_cannot_be_written_costs_no_block(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / INDEX_NAME).mkdir()
    clock = FakeClock()
    with opened(tmp_path, clock=clock) as store:
        assert put(store, 1) == [False]
        clock.advance(10)
        assert put(store, 1) == [True]
        assert right(store, 1) == [True]
        (tmp_path / INDEX_NAME).rmdir()
        clock.advance(20)
        assert put(store, 2) == [True]

    with opened(tmp_path) as store:
        assert numbers_of(store) == [1, 2]
    assert caplog.text.count("reading goes on") == 1


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(ConfigError, match=r"file cannot be used for KV blocks"):
        open_store(tmp_path / "file")


def test_a_short_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.pwritev

    def some(file: int, buffers: list[memoryview], offset: int) -> int:
        return write(file, [buffers[0][:100]], offset)

    monkeypatch.setattr(os, "pwritev", some)
    with opened(tmp_path) as store:
        assert put(store, 1, 2) == [True, True]
        assert right(store, 1, 2) == [True, True]


def test_many_open_files_are_not_needed(tmp_path: Path) -> None:
    with opened(tmp_path, slots_per_segment=1) as store:
        before = len(os.listdir("/proc/self/fd"))
        assert all(put(store, *range(90)))
        assert all(right(store, *range(90)))
        assert len(os.listdir("/proc/self/fd")) - before <= 64
