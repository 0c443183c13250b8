"""Owns the memory of the KV pool: one anonymous mapping, cut into blocks.

The system gives pages when they are first written. `populate` asks for them beforehand, on a thread
of its own, so that neither start-up nor the first requests wait: a page that a kernel needs sooner
comes at once, and nothing that a kernel wrote is changed.
"""

import logging
import mmap
import os
import threading

import numpy as np
from numpy.typing import NDArray

from kokuban.core.errors import ConfigError
from kokuban.kernels.native import populate
from kokuban.kvcache.layout import KvLayout

_LOG = logging.getLogger(__name__)

_PIECE = 8 << 20
"""Bytes populated at a time, so that the end of the process need not wait for all."""

_NICENESS = 10
"""Of the thread that populates: whoever computes or starts up goes first."""


class KvStorage:
    """KV blocks in main memory. The pool decides who holds a block, this class only keeps bytes."""

    def __init__(self, layout: KvLayout, num_blocks: int) -> None:
        """Reserve the memory; pages come later.

        Raises:
            ConfigError: no block at all, or the address space cannot be had.
        """
        if num_blocks < 1:
            raise ConfigError(f"num_blocks={num_blocks} is below 1; raise --kv-memory")
        self.layout = layout
        self._populating: threading.Thread | None = None
        self._closing = threading.Event()
        self.num_blocks = num_blocks
        try:
            # Private: shared anonymous memory, the default, does not get huge pages.
            self._memory = mmap.mmap(
                -1, num_blocks * layout.bytes_per_block, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            )
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"{num_blocks * layout.bytes_per_block:,} bytes for the KV pool cannot be had "
                f"({error}); lower --kv-memory"
            ) from error
        self._advise(getattr(mmap, "MADV_HUGEPAGE", None), 0, len(self._memory))
        self.blocks: NDArray[np.uint8] = np.frombuffer(self._memory, np.uint8).reshape(
            num_blocks, layout.bytes_per_block
        )
        """[N, bytes_per_block] uint8, aligned to a page: what kernels take."""

    @property
    def num_bytes(self) -> int:
        return len(self._memory)

    def block(self, block_id: int) -> NDArray[np.uint8]:
        """The bytes of one block, [bytes_per_block] uint8; a view."""
        if not 0 <= block_id < self.num_blocks:
            raise IndexError(f"block {block_id} is not within the pool's {self.num_blocks}")
        view: NDArray[np.uint8] = self.blocks[block_id]
        return view

    def copy_block(self, source: int, target: int) -> None:
        """Overwrite one block with another, all layers and both sides."""
        self.block(target)[:] = self.block(source)

    def populate(self, after_s: float = 0.0) -> threading.Thread:
        """Start to fetch all pages in the background.

        Args:
            after_s: wait so long first. While pages come, other threads wait for their own memory.

        Returns:
            The thread, for who wants to wait. It ends early, with the pages still coming on first
            use, where the system cannot do it.
        """
        thread = threading.Thread(
            target=self._populate, args=(after_s,), name="kv-populate", daemon=True
        )
        self._populating = thread
        thread.start()
        return thread

    def close(self) -> None:
        """End `populate` early. The memory stays until nobody refers to it.

        A thread inside native code must not outlive the interpreter.
        """
        self._closing.set()
        if self._populating is not None:
            self._populating.join()

    def _populate(self, after_s: float) -> None:
        self._closing.wait(after_s)
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        flat = self.blocks.reshape(-1)
        for start in range(0, len(flat), _PIECE):
            if self._closing.is_set():
                return
            if not populate(flat[start : start + _PIECE]):
                _LOG.debug("this system gives pages of the KV pool on first use only")
                return

    def _advise(self, advice: int | None, start: int, size: int) -> bool:
        if advice is None:
            return False
        try:
            self._memory.madvise(advice, start, size)
        except OSError as error:
            _LOG.debug("madvise(%d) on the KV pool: %s", advice, error)
            return False
        return True
