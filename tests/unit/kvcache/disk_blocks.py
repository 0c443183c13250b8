"""Blocks whose payload follows from their name, and stores to put them in."""

import hashlib
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

from kokuban.kvcache.disk_index import BYTES_PER_SLOT, FIXED_BYTES
from kokuban.kvcache.disk_store import DiskStore
from kokuban.kvcache.pool import BlockContent, BlockKey

SECRET = bytes(range(32))
PAYLOAD_BYTES = 2000
SLOT_BYTES = 4096
FACTS = {"model": "tiny", "kv_dtype": "bf16", "layout": "kv1-bf16"}


@cache
def content(number: int, group: int = 0) -> BlockContent:
    return BlockContent(group, BlockKey(hashlib.blake2b(b"%d" % number, digest_size=32).digest()))


@cache
def payload(block: BlockContent, num_bytes: int = PAYLOAD_BYTES) -> bytes:
    return hashlib.shake_128(b"%d" % block.group + block.key).digest(num_bytes)


def limit_for(num_blocks: int) -> int:
    """The least limit that holds so many blocks."""
    return FIXED_BYTES + (64 << 10) + num_blocks * (SLOT_BYTES + BYTES_PER_SLOT)


def open_store(
    directory: Path,
    *,
    max_blocks: int = 100,
    secret: bytes = SECRET,
    payload_bytes: int = PAYLOAD_BYTES,
    slots_per_segment: int = 8,
    clock: Callable[[], float] = time.monotonic,
) -> DiskStore:
    return DiskStore.open(
        directory,
        payload_bytes=payload_bytes,
        max_bytes=limit_for(max_blocks),
        secret=secret,
        facts=FACTS,
        segment_bytes=slots_per_segment * SLOT_BYTES,
        clock=clock,
    )


def put(store: DiskStore, *numbers: int) -> list[bool]:
    return [store.put(content(number), payload(content(number))) for number in numbers]


def read(store: DiskStore, block: BlockContent) -> bytes | None:
    """What the store gives for a block; None for a miss."""
    target = bytearray(store.payload_bytes)
    return bytes(target) if store.read_into(block, target) else None


def right(store: DiskStore, *numbers: int) -> list[bool]:
    """For each block whether it is there; what is there must be right."""
    found = []
    for number in numbers:
        got = read(store, content(number))
        assert got in (None, payload(content(number))), f"other bytes for block {number}"
        found.append(got is not None)
    return found


def numbers_of(store: DiskStore) -> list[int]:
    """Blocks 0 to 199 that are in the store, next to be evicted first."""
    by_content = {content(number): number for number in range(200)}
    return [by_content[block] for block in store.contents()]
