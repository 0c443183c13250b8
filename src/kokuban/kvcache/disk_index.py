"""Remembers over restarts which slot holds which block: one sqlite3 file, one row for each slot.

Nobody trusts it: the header in the slot has the last word. So it may be behind (a process was
killed), damaged or gone, and the price is a miss or a scan of headers. That is why it is written
without fsync, and why a file that is not exactly as expected is deleted and made anew.

The slot is the row's key: a block that replaces another replaces its row, and two rows for one slot
cannot be. The connection holds the file exclusively, so that no memory is shared through a -shm
file, which another process could cut off under us.
"""

import logging
import os
import sqlite3
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from kokuban.kvcache.pool import BlockContent, BlockKey
from kokuban.kvcache.slot_format import KEY_BYTES

BYTES_PER_SLOT = 128
"""Upper bound of what a row costs in the file: 45 bytes of values, overhead and half-full pages."""

FIXED_BYTES = 1 << 20
"""Upper bound of the rest: first pages, and a write-ahead log between two checkpoints."""

MAX_ROWS_PER_WRITE = 64
"""More in one transaction could make the log longer than `FIXED_BYTES`."""

_APPLICATION_ID = 0x6B6B4B56  # "kkKV"
_SCHEMA = (
    "CREATE TABLE slots (slot INTEGER PRIMARY KEY, kv_group INTEGER NOT NULL, "
    "key BLOB NOT NULL, last_used INTEGER NOT NULL)"
)
_SETTINGS = (  # In this order: the first must come before the file is read.
    "PRAGMA locking_mode=EXCLUSIVE",
    "PRAGMA synchronous=OFF",
    "PRAGMA journal_mode=WAL",
    "PRAGMA wal_autocheckpoint=64",
    "PRAGMA journal_size_limit=262144",
    "PRAGMA trusted_schema=OFF",
)
_MAX_LAST_USED = 2**62

_LOG = logging.getLogger(__name__)


class IndexRow(NamedTuple):
    """What one slot holds."""

    slot: int
    content: BlockContent | None
    """None: nothing any more; such a row is deleted."""

    last_used: int
    """A count that grows with every use of any block."""


class DiskIndex:
    """The sqlite3 file of one store. One thread at a time, `num_bytes` excepted."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._num_bytes = 0

    @property
    def num_bytes(self) -> int:
        """Of the file and its log, as of the last call that read or wrote them."""
        return self._num_bytes

    @property
    def is_open(self) -> bool:
        return self._connection is not None

    def load(self) -> list[IndexRow] | None:
        """Open the file and read all rows.

        Returns:
            None when there is none that can be used; what was there is deleted. No order.
        """
        self._remove_strangers()
        if not self._path.exists():
            self._discard()
            return None
        try:
            connection = self._connect()
            if problem := _problem(connection):
                raise sqlite3.DatabaseError(problem)
            rows = connection.execute("SELECT slot, kv_group, key, last_used FROM slots").fetchall()
        except sqlite3.Error as error:
            _LOG.warning("%s is no usable index (%s); it is made anew", self._path, error)
            self._discard()
            return None
        self._measure()
        return [_row(*values) for values in rows if _is_sound(*values)]

    def rebuild(self, rows: Iterable[IndexRow]) -> None:
        """Begin anew with these rows and no others.

        Raises:
            sqlite3.Error, OSError: there is no index then, and `is_open` is false.
        """
        self._discard()
        try:
            os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_NOFOLLOW, 0o600))
            connection = self._connect()
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(_SCHEMA)
            connection.execute(f"PRAGMA application_id={_APPLICATION_ID}")
            connection.executemany("INSERT INTO slots VALUES (?, ?, ?, ?)", map(_values, rows))
            connection.execute("COMMIT")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except (sqlite3.Error, OSError):
            self._discard()
            raise
        finally:
            self._measure()

    def write(self, rows: Iterable[IndexRow]) -> None:
        """Replace or delete the rows of some slots, `MAX_ROWS_PER_WRITE` at most, all or none.

        Raises:
            sqlite3.Error: nothing was written. If the file cannot be used any more, it is deleted
                and `is_open` is false: `rebuild` it.
        """
        assert self._connection is not None, "the index is not open"
        changed = list(rows)
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.executemany(
                "INSERT OR REPLACE INTO slots VALUES (?, ?, ?, ?)",
                [_values(row) for row in changed if row.content is not None],
            )
            self._connection.executemany(
                "DELETE FROM slots WHERE slot = ?",
                [(row.slot,) for row in changed if row.content is None],
            )
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            with suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
            if not isinstance(error, sqlite3.OperationalError):  # Not full or busy: damaged.
                self._discard()
            raise
        finally:
            self._measure()

    def close(self) -> None:
        """Write the log back and close."""
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None

    def _connect(self) -> sqlite3.Connection:
        # Several threads may call, one after the other.
        connection = sqlite3.connect(
            self._path, isolation_level=None, check_same_thread=False, cached_statements=8
        )
        self._connection = connection
        for setting in _SETTINGS:
            connection.execute(setting)
        return connection

    def _discard(self) -> None:
        self.close()
        for path in self._paths():
            with suppress(OSError):
                path.unlink()

    def _remove_strangers(self) -> None:
        """sqlite3 would follow a symbolic link."""
        for path in self._paths():
            with suppress(OSError):
                if not stat.S_ISREG(path.lstat().st_mode):
                    path.unlink()

    def _measure(self) -> None:
        total = 0
        for path in self._paths():
            with suppress(OSError):
                total += path.lstat().st_size
        self._num_bytes = total

    def _paths(self) -> list[Path]:
        endings = ("", "-wal", "-shm", "-journal")
        return [self._path.with_name(self._path.name + ending) for ending in endings]


def _problem(connection: sqlite3.Connection) -> str | None:
    """Why this database is not an index of ours, undamaged; None if it is."""
    [application_id] = connection.execute("PRAGMA application_id").fetchone()
    if application_id != _APPLICATION_ID:
        return f"it belongs to application {application_id:#x}"
    if connection.execute("SELECT sql FROM sqlite_master").fetchall() != [(_SCHEMA,)]:
        return "it has other tables"
    [found] = connection.execute("PRAGMA quick_check(1)").fetchone()
    return None if found == "ok" else f"{found}"


def _is_sound(slot: object, group: object, key: object, last_used: object) -> bool:
    """Columns of sqlite3 hold any type."""
    numbers_are = all(isinstance(value, int) and value >= 0 for value in (slot, group, last_used))
    return numbers_are and isinstance(key, bytes) and len(key) == KEY_BYTES


def _row(slot: int, group: int, key: bytes, last_used: int) -> IndexRow:
    content = BlockContent(group, BlockKey(key))
    return IndexRow(slot, content, last_used if last_used < _MAX_LAST_USED else 0)


def _values(row: IndexRow) -> tuple[int, int, bytes, int]:
    assert row.content is not None, f"slot {row.slot} holds nothing"
    return row.slot, row.content.group, row.content.key, row.last_used
