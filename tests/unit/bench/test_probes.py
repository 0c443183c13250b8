"""Limits of the machine: each is measured, by number of threads, and goes where it belongs."""

import pytest

from kokuban.bench.machine import thread_counts, with_peaks
from kokuban.bench.probes import NativeProbes, Peaks, cache_bytes, dram_bytes, measure_peaks
from kokuban.kernels.peak import PROBES
from kokuban.observe.machine import last_cache_bytes
from kokuban.plan.machine import MachineConstants


class CountingProbes:
    """Faster with every answer."""

    def __init__(self) -> None:
        self.answers = 0.0

    def bytes_per_s(self, working_set_bytes: int, threads: int) -> float:
        self.answers += 1
        return self.answers + (1000 if working_set_bytes == dram_bytes() else 0)

    def ops_per_s(self, probe: str, threads: int) -> float:
        self.answers += 1
        return 0 if probe == "bf16" else self.answers


def test_a_peak_is_the_best_of_its_rounds() -> None:
    found = measure_peaks(CountingProbes(), 3, rounds=2)

    assert found == Peaks(
        threads=3,
        dram_bytes_per_s=1007,
        cache_bytes_per_s=8,
        ops_per_s={"fma": 9, "int8": 10, "int8_widened": 11, "bf16": 0},
    )


def test_the_machine_answers_for_one_thread_and_for_two() -> None:
    probes = NativeProbes(isa_cap=-1, probe_s=0)

    for threads in (1, 2):
        assert probes.bytes_per_s(100, threads) > 0
        assert probes.bytes_per_s(5 << 20, threads) > 0
        for probe in PROBES:
            rate = probes.ops_per_s(probe, threads)
            assert rate > 0 or (probe == "bf16" and rate == 0)


def test_memory_for_the_cache_fits_and_that_for_dram_does_not() -> None:
    last = last_cache_bytes()

    assert dram_bytes() >= max(128 << 20, 4 * last)
    assert 0 < cache_bytes() <= max(last, 8 << 20)


@pytest.mark.parametrize(
    ("threads", "counts"),
    [(1, [1]), (2, [1, 2]), (4, [1, 2, 3, 4]), (8, [1, 2, 4, 8]), (12, [1, 2, 4, 8, 12])],
)
def test_large_machines_are_measured_at_powers_of_two(threads: int, counts: list[int]) -> None:
    assert thread_counts(threads) == counts


def test_the_limits_go_into_the_constants() -> None:
    peaks = Peaks(
        threads=2, dram_bytes_per_s=1, cache_bytes_per_s=2, ops_per_s={"fma": 3, "int8": 4}
    )

    found = with_peaks(MachineConstants(), peaks)

    assert (found.dram_read_bytes_per_s, found.cache_read_bytes_per_s) == (1, 2)
    assert (found.fp32_peak_flops_per_s, found.int8_peak_flops_per_s) == (3, 4)
