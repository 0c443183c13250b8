"""Moves blocks between slots of host memory and a `DiskStore`, on a thread of its own.

Owns: the I/O thread and its two queues. The engine thread puts jobs in and takes results out; it
never waits for the disk. Reads go first, since a request waits for them; what the queue of writes
has no room for is dropped, since it can be computed again.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from kokuban.kvcache.disk_store import DiskStore
from kokuban.kvcache.pool import BlockContent
from kokuban.kvcache.write_pause import Clock

Kind = Literal["read", "write"]

_LOG = logging.getLogger(__name__)


class Done(NamedTuple):
    """One job has ended; its slot is the engine's again."""

    kind: Kind
    content: BlockContent
    slot: int
    ok: bool
    """Read: the slot holds the block. Write: the disk holds it."""


class _Job(NamedTuple):
    kind: Kind
    content: BlockContent
    slot: int


@dataclass(frozen=True, slots=True)
class DiskTierStats:
    """Counts since the start, and what is there now."""

    num_blocks: int
    num_bytes: int
    written: int
    read: int
    bad: int
    refused: int
    evicted: int
    lost_at_open: int
    dropped: int
    """Writes for which the queue had no room."""

    failed: int
    """Jobs that ended with an exception: a fault of ours."""

    queued_reads: int
    queued_writes: int
    read_s: float
    """Seconds spent on reads that succeeded; bytes over these is what reading costs."""

    write_s: float


class DiskTier:
    """A store with a thread. All methods are the engine thread's, and none waits but `close`.

    Each job that was accepted gives one `Done`, also when it was cancelled (`ok` is false then).
    The slot of a job must stay as it is until then.

    Args:
        store: closed by `close`; nobody else may use it meanwhile.
        slot_view: the bytes of a slot of host memory, writable; called on the I/O thread.
        max_queued_writes: 1 or more.
        on_done: wakes the engine: called on the I/O thread after each job, and by whoever cancels.
    """

    def __init__(
        self,
        store: DiskStore,
        slot_view: Callable[[int], memoryview],
        *,
        max_queued_writes: int,
        on_done: Callable[[], None],
        clock: Clock = time.monotonic,
    ) -> None:
        assert max_queued_writes >= 1, f"max_queued_writes={max_queued_writes}"
        self._store = store
        self._slot_view = slot_view
        self._max_queued_writes = max_queued_writes
        self._on_done = on_done
        self._clock = clock
        self._changed = threading.Condition()
        """Its lock guards all below but the times, which are the I/O thread's."""
        self._reads: deque[_Job] = deque()
        self._writes: deque[_Job] = deque()
        self._done: list[Done] = []
        self._in_hand: _Job | None = None
        self._clearing = False
        self._forgotten: dict[BlockContent, None] = {}
        """Still in the store, and to be taken out."""
        self._closing = False
        self._dropped = 0
        self._failed = 0
        self._seconds: dict[Kind, float] = {"read": 0.0, "write": 0.0}
        self._thread = threading.Thread(target=self._run, name="kv-disk", daemon=True)
        self._thread.start()

    @property
    def num_pending(self) -> int:
        """Jobs that have not ended."""
        with self._changed:
            return len(self._reads) + len(self._writes) + (self._in_hand is not None)

    @property
    def num_blocks(self) -> int:
        """Blocks on disk."""
        return self._store.num_blocks

    @property
    def max_blocks(self) -> int:
        """Blocks that fit; 0: as many as the disk holds."""
        return self._store.max_blocks or 0

    @property
    def room(self) -> int:
        """Writes that would be accepted now."""
        with self._changed:
            return 0 if self._closing else self._max_queued_writes - len(self._writes)

    def contains(self, content: BlockContent) -> bool:
        """Whether a read is likely to succeed. A write that is queued does not count."""
        known = not self._clearing and content not in self._forgotten
        return known and self._store.contains(content)

    def touch(self, content: BlockContent) -> bool:
        """Count a use: this block is now the last one to be evicted."""
        return self._store.touch(content)

    def write(self, content: BlockContent, slot: int) -> bool:
        """Queue a slot to be written. False if the queue is full or closed: there is no job."""
        with self._changed:
            if self._closing or len(self._writes) >= self._max_queued_writes:
                self._dropped += 1
                return False
            self._writes.append(_Job("write", content, slot))
            self._changed.notify()
            return True

    def read(self, content: BlockContent, slot: int) -> None:
        """Queue a block to be read into a slot; before all writes, in the order of the calls."""
        job = _Job("read", content, slot)
        with self._changed:
            if not self._closing:
                self._reads.append(job)
                self._changed.notify()
                return
            self._done.append(Done(*job, ok=False))
        self._wake()

    def take_done(self) -> list[Done]:
        """The jobs that ended since the last call, in the order in which they did."""
        with self._changed:
            done, self._done = self._done, []
            return done

    def forget(self, content: BlockContent) -> None:
        """Forget a block; a write queued for it is cancelled. `contains` is false at once."""
        with self._changed:
            self._forgotten[content] = None
            cancelled = deque(job for job in self._writes if job.content == content)
            self._writes = deque(job for job in self._writes if job.content != content)
            self._cancel(cancelled)
            self._changed.notify()
        self._wake()

    def clear(self) -> None:
        """Forget every block; queued writes are cancelled.

        `contains` is false from now on. Reads that are queued already still give right bytes.
        """
        with self._changed:
            self._clearing = True
            self._cancel(self._writes)
            self._changed.notify()
        self._wake()

    def stats(self) -> DiskTierStats:
        """Counts for metrics; no file is touched."""
        counters = self._store.counters
        with self._changed:
            return DiskTierStats(
                num_blocks=self._store.num_blocks,
                num_bytes=self._store.num_bytes,
                written=counters.written,
                read=counters.read,
                bad=counters.bad,
                refused=counters.refused,
                evicted=counters.evicted,
                lost_at_open=counters.lost_at_open,
                dropped=self._dropped,
                failed=self._failed,
                queued_reads=len(self._reads),
                queued_writes=len(self._writes),
                read_s=self._seconds["read"],
                write_s=self._seconds["write"],
            )

    def close(self, timeout_s: float, *, last_job_s: float = 1.0) -> int:
        """Cancel reads, finish writes until the time is over, close the store.

        Args:
            last_job_s: how much longer to wait for the job in hand.

        Returns:
            Writes that were lost. A disk that hangs keeps its thread and the store's lock until
            the process ends.
        """
        with self._changed:
            self._closing = True
            self._cancel(self._reads)
            self._changed.notify()
        self._wake()
        self._thread.join(timeout_s)
        with self._changed:
            lost = len(self._writes)
            self._cancel(self._writes)
        self._thread.join(last_job_s)
        if not self._thread.is_alive():
            self._store.close()
            return lost
        with self._changed:
            return lost + (self._in_hand is not None and self._in_hand.kind == "write")

    def _run(self) -> None:
        while (job := self._next()) is not None:
            ok = self._attempt(job)
            with self._changed:
                self._in_hand = None
                self._done.append(Done(*job, ok=ok))
            self._wake()

    def _next(self) -> _Job | None:
        """Wait for a job; None when there will be no more. Clears and forgets between jobs."""
        while True:
            with self._changed:
                while not (self._reads or self._is_forgetful or self._writes or self._closing):
                    self._changed.wait()
                if self._reads or not self._is_forgetful:
                    queue = self._reads or self._writes
                    self._in_hand = queue.popleft() if queue else None
                    return self._in_hand
            self._clear()

    @property
    def _is_forgetful(self) -> bool:
        return self._clearing or bool(self._forgotten)

    def _attempt(self, job: _Job) -> bool:
        start = self._clock()
        try:
            view = self._slot_view(job.slot)
            if job.kind == "read":
                ok = self._store.read_into(job.content, view)
            else:
                ok = self._store.put(job.content, view)
        except Exception:  # noqa: BLE001 - a job must not end the thread
            _LOG.exception("a KV block could not be moved to or from disk")
            with self._changed:
                self._failed += 1
            return False
        if ok:
            self._seconds[job.kind] += self._clock() - start
        return ok

    def _clear(self) -> None:
        with self._changed:
            everything, some = self._clearing, tuple(self._forgotten)
        try:
            if everything:
                self._store.clear()
            for content in some:
                self._store.remove(content)
        except Exception:  # noqa: BLE001 - nor must this
            _LOG.exception("KV blocks on disk could not be forgotten")
        with self._changed:
            self._clearing = self._clearing and not everything
            for content in some:
                self._forgotten.pop(content, None)

    def _cancel(self, jobs: "deque[_Job]") -> None:
        """The caller has the lock."""
        self._done += [Done(*job, ok=False) for job in jobs]
        jobs.clear()

    def _wake(self) -> None:
        try:
            self._on_done()
        except Exception:  # noqa: BLE001 - nor somebody else's code
            _LOG.exception("the engine could not be woken")
