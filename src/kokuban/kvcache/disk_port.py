"""What the lower tiers ask of a disk: `kvcache.disk_tier.DiskTier`, or a fake in tests."""

from collections.abc import Sequence
from typing import Protocol

from kokuban.kvcache.contents import BlockContent


class DiskJob(Protocol):
    """Something that the disk has done."""

    @property
    def kind(self) -> str:
        """ "read" or "write"."""
        ...

    @property
    def content(self) -> BlockContent: ...

    @property
    def slot(self) -> int: ...

    @property
    def ok(self) -> bool: ...


class Disk(Protocol):
    """The part of `kvcache.disk_tier.DiskTier` that is used here; all but the I/O is immediate."""

    @property
    def room(self) -> int:
        """Writes that could be queued now."""
        ...

    @property
    def num_blocks(self) -> int:
        """Contents that it has."""
        ...

    @property
    def max_blocks(self) -> int:
        """Contents that it holds; 0: any number."""
        ...

    def contains(self, content: BlockContent) -> bool: ...

    def write(self, content: BlockContent, slot: int) -> bool:
        """Queue the writing of a slot; False if the queue is full."""
        ...

    def read(self, content: BlockContent, slot: int) -> None:
        """Queue the reading into a slot."""
        ...

    def take_done(self) -> Sequence[DiskJob]: ...

    def forget(self, content: BlockContent) -> None:
        """Have a content found no more, whatever is queued for it."""
        ...

    def clear(self) -> None: ...
