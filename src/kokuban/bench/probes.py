"""The machine's limits, measured in the moment of asking: a few milliseconds for each answer.

A shared machine is twice as fast in one minute as in the next, so that a limit means something only
beside what was measured just before and after it.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from kokuban.kernels.native import make_threads
from kokuban.kernels.peak import PROBES, READ_STEP, Probe, huge_pages, read_memory, run_probe
from kokuban.observe.machine import available_memory_bytes, last_cache_bytes

DRAM_BYTES = 128 << 20
"""Read to measure main memory, or four times the last cache if that is more."""

CACHE_BYTES = 8 << 20
"""Read to measure the last cache, or a quarter of it if that is known."""

PROBE_S = 0.003
_CALIBRATION_ITEMS = 16


class Probes(Protocol):
    """What `bench kernels` asks between two measurements."""

    def bytes_per_s(self, working_set_bytes: int, threads: int) -> float:
        """Reading so much memory again and again."""
        ...

    def ops_per_s(self, probe: Probe, threads: int) -> float:
        """Operations in registers, two for each multiply-add; 0 where there is no such
        instruction."""
        ...


class NativeProbes:
    """Probes of this machine.

    Args:
        isa_cap: as kernels take it, so that a cap on kernels caps their yardstick too.
        pools: native threads by their number; others are made when they are first needed.
        probe_s: time for one answer.
    """

    def __init__(
        self, *, isa_cap: int, pools: Mapping[int, Any] | None = None, probe_s: float = PROBE_S
    ) -> None:
        self._isa_cap = isa_cap
        self._pools = dict(pools or {})
        self._probe_s = probe_s
        self._memory = huge_pages(READ_STEP)
        self._repeats: dict[tuple[object, int], int] = {}

    def bytes_per_s(self, working_set_bytes: int, threads: int) -> float:
        """See `Probes`."""
        most = max(CACHE_BYTES, available_memory_bytes() // 4)
        size = min(working_set_bytes, most) // READ_STEP * READ_STEP or READ_STEP
        if self._memory.nbytes < size:
            self._memory = huge_pages(size)
        piece, pool = self._memory[:size], self._pool(threads)
        return size * self._per_s(
            (size, threads),
            lambda passes: read_memory(piece, passes, isa_cap=self._isa_cap, pool=pool),
            first=1,
        )

    def ops_per_s(self, probe: Probe, threads: int) -> float:
        """See `Probes`."""
        pool = self._pool(threads)
        items = _CALIBRATION_ITEMS * threads
        done = run_probe(probe, items, isa_cap=self._isa_cap, pool=pool).operations
        if not done:
            return 0.0
        return (done / items) * self._per_s(
            (probe, threads),
            lambda count: run_probe(probe, count, isa_cap=self._isa_cap, pool=pool),
            first=items,
        )

    def _pool(self, threads: int) -> Any:
        if threads == 1:
            return None
        if threads not in self._pools:
            self._pools[threads] = make_threads(threads)
        return self._pools[threads]

    def _per_s(self, key: tuple[object, int], run: Callable[[int], object], first: int) -> float:
        """Repetitions a second, over about `probe_s`. How many that are is found out once."""
        if key not in self._repeats:
            run(first)  # the memory and the caches warm
            seconds = _seconds(lambda: run(first))
            self._repeats[key] = max(first, math.ceil(first * self._probe_s / seconds))
        count = self._repeats[key]
        return count / _seconds(lambda: run(count))


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return max(time.perf_counter() - start, 1e-9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    """What so many threads reach at best."""

    threads: int
    dram_bytes_per_s: float
    cache_bytes_per_s: float
    """Of the last cache."""

    ops_per_s: dict[str, float]
    """By probe of `kernels.peak`; 0 where there is no such instruction."""


def dram_bytes() -> int:
    """Memory to be read so that no cache serves it."""
    return max(DRAM_BYTES, 4 * last_cache_bytes())


def cache_bytes() -> int:
    """Memory that the last cache holds, also where others use it, and the ones before it do not."""
    return last_cache_bytes() // 4 or CACHE_BYTES


def measure_peaks(probes: Probes, threads: int, *, rounds: int = 7) -> Peaks:
    """The best of several rounds in turns: what others take from the machine they take from the
    rest."""
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        found.setdefault("dram", []).append(probes.bytes_per_s(dram_bytes(), threads))
        found.setdefault("cache", []).append(probes.bytes_per_s(cache_bytes(), threads))
        for probe in PROBES:
            found.setdefault(probe, []).append(probes.ops_per_s(probe, threads))
    best = {name: max(values) for name, values in found.items()}
    return Peaks(
        threads=threads,
        dram_bytes_per_s=best["dram"],
        cache_bytes_per_s=best["cache"],
        ops_per_s={probe: best[probe] for probe in PROBES},
    )
