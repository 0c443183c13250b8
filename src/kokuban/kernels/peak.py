"""Probes of the machine's limits: arithmetic in registers alone, memory read and nothing else.

Owns: nothing. Each call does a known amount of work and says how much; the caller times it. The
probes are csrc/kernels/peak/peak.h; `bench` compares the kernels of the models with them.
"""

import mmap
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from kokuban import _native

Probe = Literal["fma", "int8", "int8_widened", "bf16"]

PROBES: tuple[Probe, ...] = ("fma", "int8", "int8_widened", "bf16")
"""float32 multiply-adds; u8 x i8 in sums as narrow as the instruction set allows; the same with
sums of 32 bits; the bf16 dot product."""

READ_STEP = 512
"""`read_memory` takes multiples of so many bytes."""

_HUGE_PAGE = 2 << 20


@dataclass(frozen=True, slots=True)
class Work:
    """What a probe has done."""

    operations: int
    """Multiplications and additions; 0 where the machine has no such instruction."""

    total: float
    """What the accumulators add up to: each product is 1, so half of `operations`, exactly."""


def run_probe(probe: Probe, items: int, *, isa_cap: int = -1, pool: Any = None) -> Work:
    """Run an arithmetic probe `items` times, each some 10 microseconds, spread over the pool.

    Args:
        isa_cap: index into `core.env.ISA_LEVELS` of the best instruction set to use; -1: the
            machine's best.
        pool: a `_native.ThreadPool`; None computes on the calling thread.

    Raises:
        ValueError: there is no such probe, or `items` is negative.
    """
    if probe not in PROBES:
        raise ValueError(f"probe={probe!r} is none of {', '.join(PROBES)}")
    if items < 0:
        raise ValueError(f"items={items}; it must be at least 0")
    products, total = _native.peak(PROBES.index(probe), items, isa_cap, pool)
    return Work(2 * products, total)


def read_memory(
    memory: NDArray[np.uint8], passes: int = 1, *, isa_cap: int = -1, pool: Any = None
) -> int:
    """Read all of `memory` [bytes] uint8, `passes` times, with the widest loads.

    A buffer above the last-level cache measures DRAM; one that fits measures that cache from the
    second pass on. Take the memory from `huge_pages`, as weights do, or page walks are measured.

    Returns:
        The sum of its 64-bit little-endian words over all passes, modulo 2^64.

    Raises:
        ValueError: the memory is no multiple of `READ_STEP` bytes, or `passes` is negative.
    """
    if memory.nbytes % READ_STEP:
        raise ValueError(
            f"memory has {memory.nbytes} bytes; they must be a multiple of {READ_STEP}"
        )
    if passes < 0:
        raise ValueError(f"passes={passes}; it must be at least 0")
    return int(_native.read_memory(memory, passes, isa_cap, pool))


def huge_pages(size: int) -> NDArray[np.uint8]:
    """[size] uint8 at a multiple of 2 MB, filled with ones, in huge pages if the system has some.

    Written, because memory that was never written is one page of zeros, which any cache holds.
    """
    memory = mmap.mmap(-1, size + _HUGE_PAGE)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    raw = np.frombuffer(memory, np.uint8)
    first = -raw.ctypes.data % _HUGE_PAGE
    aligned = raw[first : first + size]
    aligned.fill(1)
    return aligned
