"""Puts the KV memory of an engine together: budget, layout, pool and what lies below it."""

import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kokuban.core.config import RuntimeConfig, SchedulerConfig
from kokuban.core.errors import ConfigError, StoreInUse
from kokuban.kvcache.events import EventLog
from kokuban.kvcache.eviction import FLAT, Worth
from kokuban.kvcache.layout import KvLayout
from kokuban.kvcache.manager import Manager
from kokuban.kvcache.pool import BlockPool
from kokuban.kvcache.prefix import KeySpace
from kokuban.kvcache.storage import KvStorage
from kokuban.kvcache.tiers import LowerTiers
from kokuban.observe.machine import available_memory_bytes
from kokuban.plan.memory import KvBudget, default_budget, plan_kv
from kokuban.program.program import KvSpec

if TYPE_CHECKING:
    from kokuban.kvcache.disk_tier import DiskTier

STAGING_BLOCKS = 64
"""Host memory that the disk tier gets to pass through when the operator gave it none."""

MAX_QUEUED_WRITES = 256
"""Blocks that wait for the disk, each in a slot of host memory."""

_log = logging.getLogger(__name__)


class Doorbell:
    """Lets an I/O thread wake an engine that is built after it."""

    def __init__(self) -> None:
        self._answer: Callable[[], None] = lambda: None

    def answer_with(self, answer: Callable[[], None]) -> None:
        """Call this from now on, on the thread of whoever rings."""
        self._answer = answer

    def ring(self) -> None:
        """Wake the engine."""
        self._answer()


@dataclass(frozen=True, slots=True)
class KvMemory:
    """All of it. Everything but the doorbell belongs to the engine thread once that runs."""

    budget: KvBudget
    manager: Manager
    storage: KvStorage
    host: KvStorage | None
    tiers: LowerTiers | None
    disk: "DiskTier | None"
    log: EventLog | None
    doorbell: Doorbell


def make_layout(kv: KvSpec, block_size: int, runtime: RuntimeConfig) -> KvLayout:
    """The shape of the model's blocks."""
    return KvLayout(
        block_size=block_size,
        num_kv_heads=kv.num_kv_heads,
        head_dim=kv.head_dim,
        layers_per_group=len(kv.groups[0].layers),
        dtype=runtime.kv_dtype,
    )


def make_kv_memory(
    kv: KvSpec,
    layout: KvLayout,
    budget: KvBudget,
    *,
    key_space: KeySpace | None,
    scheduler: SchedulerConfig,
    runtime: RuntimeConfig,
    disk_root: Path,
    model: str,
    worth: Worth = FLAT,
    debug: bool = False,
) -> KvMemory:
    """Reserve the memory and open the disk.

    Args:
        key_space: names contents; None without a prefix cache.
        disk_root: the directory of all disk tiers of this installation.
        model: what people call it.
        worth: what blocks cost to compute again.
        debug: whether the tokens of every hit are compared.

    Raises:
        ConfigError: memory or disk cannot be had, or lower tiers without a prefix cache.
    """
    doorbell = Doorbell()
    host, tiers, disk, log = None, None, None, None
    if key_space is not None:
        log = EventLog(epoch=secrets.token_hex(4))
    num_slots = _num_slots(layout, runtime)
    if num_slots:
        if key_space is None:
            raise ConfigError(
                "--kv-ram and --kv-disk keep what the prefix cache names; leave out "
                "--no-prefix-cache, or both"
            )
        host = KvStorage(layout, num_slots)
        if runtime.kv_disk_bytes:
            disk = _open_disk(layout, runtime, host, key_space, disk_root, model, doorbell)
        tiers = LowerTiers(num_slots, disk, log)
    manager = Manager(
        BlockPool(budget.num_blocks, eviction=scheduler.eviction, log=log),
        block_size=layout.block_size,
        windows=[group.window for group in kv.groups],
        key_space=key_space,
        tiers=tiers,
        compares=debug,
        worth=worth,
    )
    storage = KvStorage(layout, budget.num_blocks)
    return KvMemory(budget, manager, storage, host, tiers, disk, log, doorbell)


def _num_slots(layout: KvLayout, runtime: RuntimeConfig) -> int:
    """Blocks of host memory.

    Raises:
        ConfigError: some was given, but less than one block.
    """
    num_slots = runtime.kv_ram_bytes // layout.bytes_per_block
    if runtime.kv_ram_bytes and not num_slots:
        raise ConfigError(
            f"--kv-ram {runtime.kv_ram_bytes} holds no block of {layout.bytes_per_block} bytes; "
            f"give that or more, or leave it out"
        )
    return max(num_slots, STAGING_BLOCKS) if runtime.kv_disk_bytes else num_slots


def _open_disk(
    layout: KvLayout,
    runtime: RuntimeConfig,
    host: KvStorage,
    key_space: KeySpace,
    root: Path,
    model: str,
    doorbell: Doorbell,
) -> "DiskTier | None":
    """The store of this model, layout and numerics; None, with a warning, if another has it."""
    # SQLite and all that: for those who have a disk tier.
    from kokuban.kvcache.disk_store import DiskStore
    from kokuban.kvcache.disk_tier import DiskTier

    try:
        store = DiskStore.open(
            root / key_space.root().hex()[:32],
            payload_bytes=layout.bytes_per_block,
            max_bytes=runtime.kv_disk_bytes,
            secret=key_space.secret,
            facts={"model": model, "kv_dtype": layout.dtype, "layout": layout.layout_id},
        )
    except StoreInUse as error:
        _log.warning("%s; this server keeps no KV on disk", error)
        return None
    _log.info("KV on disk: %d blocks found, %d lost", store.num_blocks, store.counters.lost_at_open)
    return DiskTier(
        store,
        lambda slot: host.block(slot).data,
        max_queued_writes=min(MAX_QUEUED_WRITES, max(1, host.num_blocks // 2)),
        on_done=doorbell.ring,
    )


def kv_budget(
    kv: KvSpec,
    layout: KvLayout,
    max_positions: int,
    scheduler: SchedulerConfig,
    runtime: RuntimeConfig,
    share: float = 1.0,
    taken_bytes: int = 0,
) -> KvBudget:
    """How many blocks the operator's budget, or a share of the free memory, holds.

    Args:
        share: of the budget that is for this pool.
        taken_bytes: of the free memory, that somebody else is about to take.

    Raises:
        ConfigError: they hold nothing useful, or the context is longer than the model's.
    """
    context = scheduler.max_context_tokens or max_positions
    if context > max_positions:
        raise ConfigError(
            f"max_context_tokens={context} is above the {max_positions} that the model was made "
            f"for; use that or less, or 0 for as many as fit"
        )
    budget_bytes = runtime.kv_memory_bytes
    if budget_bytes is None:
        budget_bytes = default_budget(
            kv,
            available_bytes=max(0, available_memory_bytes() - taken_bytes),
            block_size=layout.block_size,
            dtype=layout.dtype,
            max_context_tokens=context,
            max_running_requests=scheduler.max_running_requests,
            share=share,
        )
    return plan_kv(
        kv,
        budget_bytes=budget_bytes,
        block_size=layout.block_size,
        dtype=layout.dtype,
        max_context_tokens=context,
        required_context_tokens=scheduler.max_context_tokens and context,
        share=share,
    )
