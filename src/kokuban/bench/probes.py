"""The machine's limits, measured in the moment of asking: a few milliseconds for each answer.

A shared machine is twice as fast in one minute as in the next, so that a limit means something only
beside what was measured just before and after it.
"""

import itertools
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from kokuban.kernels.native import make_threads
from kokuban.kernels.peak import PROBES, READ_STEP, Probe, huge_pages, read_memory, run_probe
from kokuban.observe.machine import available_memory_bytes, last_cache_bytes

DRAM_BYTES = 128 << 20
"""Read to measure main memory, or four times the last cache if that is more."""

CACHE_BYTES = 8 << 20
"""Read to measure the last cache, or a quarter of it if that is known."""

PIECE_BYTES = 4 << 20
"""Read in one call: so short that most calls are not interrupted by others."""

PROBE_S, CALL_S = 0.004, 2e-4


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
        """See `Probes`. Memory that no cache holds is read piece after piece, once each time."""
        most = max(CACHE_BYTES, available_memory_bytes() // 4)
        size = _whole_steps(min(working_set_bytes, most))
        if self._memory.nbytes < size:
            self._memory = huge_pages(size)
        pool, piece = self._pool(threads), min(size, PIECE_BYTES)
        pieces = itertools.cycle(
            self._memory[start : start + piece] for start in range(0, size - piece + 1, piece)
        )

        def read(passes: int) -> None:
            read_memory(next(pieces), passes, isa_cap=self._isa_cap, pool=pool)

        return piece * self._per_s((size, threads), read)

    def ops_per_s(self, probe: Probe, threads: int) -> float:
        """See `Probes`."""
        pool = self._pool(threads)
        run = partial(run_probe, probe, isa_cap=self._isa_cap, pool=pool)
        done = run(threads).operations
        return done * self._per_s((probe, threads), lambda count: run(threads * count))

    def _pool(self, threads: int) -> Any:
        if threads == 1:
            return None
        if threads not in self._pools:
            self._pools[threads] = make_threads(threads)
        return self._pools[threads]

    def _per_s(self, key: tuple[object, int], run: Callable[[int], object]) -> float:
        """Repetitions a second: the median of short calls over about `probe_s`, as kernels are
        timed. How many repetitions make a call is found out once."""
        if key not in self._repeats:
            run(1)  # the memory and the caches warm
            self._repeats[key] = max(1, round(CALL_S / _seconds(lambda: run(1))))
        count = self._repeats[key]
        calls: list[float] = []
        start = time.perf_counter()
        while len(calls) < 5 or time.perf_counter() - start < self._probe_s:
            calls.append(_seconds(lambda: run(count)))
        return count / statistics.median(calls)


def _whole_steps(size: int) -> int:
    return max(1, size // READ_STEP) * READ_STEP


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
